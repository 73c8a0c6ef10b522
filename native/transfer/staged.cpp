#include "transfer/staged.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>

#include "memory/memory.hpp"
#include "transfer/staged_checksums.hpp"
#include "transfer/staged_lane.hpp"
#include "transfer/staged_windows.hpp"
#include "transfer/workers.hpp"

namespace fastio {

namespace {

// A read of this many bytes that nothing wants takes longer than a request of its own.
constexpr uint64_t kLongestGap = 128 << 10;

// What the workers of one transfer share.
struct Transfer {
    StagedFile& file;
    const Extents& extents;
    const Span& span;
    const StagedPlaces& places;
    Control& control;
    const std::vector<Window> windows;
    WindowChecksums checksums;
    FirstFailure failure;
    std::atomic<size_t> next{0};

    Transfer(StagedFile& file, const Extents& extents, const Span& span, const StagedPlaces& places, Control& control,
             std::vector<Window> cut)
        : file(file),
          extents(extents),
          span(span),
          places(places),
          control(control),
          windows(std::move(cut)),
          checksums(extents.all().size(), windows.size()) {}

    // Has a slot take the next window, if there is one and nothing has failed.
    const Window* take(Slot& slot) {
        if (failure.is_set() || next >= windows.size()) return nullptr;
        const size_t number = next.fetch_add(1);
        if (number >= windows.size()) return nullptr;
        slot.window = number;
        return &windows[number];
    }
};

constexpr uint64_t page_of(uint64_t offset) { return offset / kPage * kPage; }

class Reader {
  public:
    Reader(Transfer& transfer, Lane& lane) : transfer_(transfer), lane_(lane) {}

    // Reads windows until none is left. `window` is always the number of the one that an error belongs to.
    void run(size_t& window) {
        for (;;) {
            Slot& slot = lane_.oldest();
            window = slot.window;
            lane_.wait(slot);
            const Window* taken = transfer_.take(slot);
            window = slot.window;
            if (taken == nullptr) return;
            transfer_.control.check();
            fill(slot, *taken);
        }
    }

  private:
    Transfer& transfer_;
    Lane& lane_;

    void fill(Slot& slot, const Window& window) {
        const uint64_t origin = page_of(window.begin);
        std::vector<Part> parts;
        transfer_.file.read(slot.memory, window.begin, window.end, [&](uint64_t from, uint64_t to) {
            transfer_.extents.measure(from, to, slot.memory + (from - origin), parts);
        });
        for (const MemoryRun& run : runs_of(transfer_.extents, transfer_.places.devices, transfer_.span, window)) {
            lane_.to_memory(slot, run, slot.memory + (run.begin - origin));
        }
        lane_.mark(slot);
        transfer_.checksums.put(slot.window, std::move(parts));
        transfer_.control.advance(window.nbytes);
    }
};

class Writer {
  public:
    Writer(Transfer& transfer, Lane& lane, const std::vector<Patch>& patches, uint64_t size)
        : transfer_(transfer), lane_(lane), patches_(patches), size_(size) {}

    // Writes windows until none is left. `window` is always the number of the one that an error belongs to.
    void run(size_t& window) {
        for (Slot* slot = start(window); slot != nullptr;) {
            Slot* following = start(window);  // copied while this one is written
            window = slot->window;
            lane_.wait(*slot);
            if (!store(*slot)) return;
            slot = following;
        }
    }

  private:
    Transfer& transfer_;
    Lane& lane_;
    const std::vector<Patch>& patches_;
    const uint64_t size_;

    // Starts the copies of the next window into the slot that is free, and returns that; null if no window is left.
    Slot* start(size_t& number) {
        Slot& slot = lane_.oldest();
        const Window* window = transfer_.take(slot);
        number = slot.window;
        if (window == nullptr) return nullptr;
        transfer_.control.check();
        const uint64_t origin = page_of(window->begin);
        uint64_t at = origin;
        auto clear_until = [&](uint64_t stop) {
            std::memset(slot.memory + (at - origin), 0, stop - at);
            at = stop;
        };
        for (const MemoryRun& run : runs_of(transfer_.extents, transfer_.places.devices, transfer_.span, *window)) {
            clear_until(run.begin);
            lane_.to_slot(slot, run, slot.memory + (run.begin - origin));
            at = run.end;
        }
        clear_until(end_of(*window));
        lane_.mark(slot);
        return &slot;
    }

    // Writes a window from its slot: whole pages, which hold no byte of another window. Returns false if another worker
    // has failed.
    bool store(Slot& slot) {
        const Window& window = transfer_.windows[slot.window];
        const uint64_t begin = page_of(window.begin), end = end_of(window);
        std::vector<Part> parts;
        transfer_.extents.measure(begin, end, slot.memory, parts);
        transfer_.checksums.put(slot.window, std::move(parts));
        if (!transfer_.checksums.patch(patches_, slot.window, begin, end, slot.memory)) return false;
        transfer_.file.write(slot.memory, begin, end);
        transfer_.control.advance(window.nbytes);
        return true;
    }

    uint64_t end_of(const Window& window) const { return std::min(round_up(window.end, kPage), size_); }
};

// Runs a worker on each staging buffer, and returns the checksums or throws the error of the lowest window.
std::vector<uint32_t> run(Transfer& transfer, const StagedMemory& memory,
                          const std::function<void(Lane&, size_t&)>& work) {
    const auto workers = static_cast<unsigned>(std::min(memory.buffers.size(), transfer.windows.size()));
    run_workers(workers, workers, [&](unsigned, uint64_t worker) {
        Lane lane(memory.buffers[worker], memory.window, transfer.places.copies);
        size_t window = 0;
        try {
            work(lane, window);
        } catch (...) {
            transfer.failure.add(window, std::current_exception());
            transfer.checksums.stop();
        }
        lane.finish(transfer.failure);
    });
    transfer.failure.rethrow();
    return transfer.checksums.values();
}

}  // namespace

std::vector<uint32_t> staged_read(StagedFile& file, const Extents& extents, const Span& span,
                                  const StagedPlaces& places, const StagedMemory& memory, Control& control) {
    Transfer transfer(file, extents, span, places, control, windows_of(extents, memory.window, kLongestGap));
    return run(transfer, memory, [&](Lane& lane, size_t& window) { Reader(transfer, lane).run(window); });
}

std::vector<uint32_t> staged_write(StagedFile& file, uint64_t size, const Extents& extents,
                                   const std::vector<Patch>& patches, const StagedPlaces& places,
                                   const StagedMemory& memory, Control& control) {
    const Span none;
    Transfer transfer(file, extents, none, places, control, windows_of(extents, memory.window, UINT64_MAX));
    return run(transfer, memory,
               [&](Lane& lane, size_t& window) { Writer(transfer, lane, patches, size).run(window); });
}

}  // namespace fastio
