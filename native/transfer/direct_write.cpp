#include <algorithm>

#include "checksum/crc32.hpp"
#include "memory/memory.hpp"
#include "transfer/block_queue.hpp"
#include "transfer/direct.hpp"

namespace fastio {

namespace {

// A smaller run of memory does not deserve its own request: it is copied together with its neighbours.
constexpr uint64_t kMinInPlaceBytes = 256 << 10;

// One request, from its begin to `end`. `in_place` is memory that the device reads directly; null: the bytes are copied
// into a staging buffer.
struct Request {
    uint64_t end;
    uint8_t* in_place;
};

// Divides a file into requests. All their bounds are aligned, except the end of the file.
class RequestPlanner {
  public:
    // `in_place`: let the device read tensor memory directly where it is aligned; else copy everything.
    RequestPlanner(const Extents& extents, const std::vector<Patch>& patches, uint64_t size,
                   const DirectOptions& options, bool in_place)
        : extents_(extents),
          patches_(patches),
          size_(size),
          options_(options),
          in_place_(in_place),
          min_nbytes_(std::min(kMinInPlaceBytes, options.block)) {}

    Request at(uint64_t begin) const {
        if (!in_place_) return {std::min(begin + options_.block, size_), nullptr};
        uint64_t end = std::min(extents_.aligned_until(begin, options_.alignment), begin + options_.block);
        if (end >= begin + min_nbytes_ && !any_patch(patches_, begin, end)) {
            return {end, extents_.aligned_memory(begin, end, options_.alignment)};
        }
        end = std::min(begin + options_.block, size_);
        return {extents_.next_aligned(begin, end, options_.alignment, min_nbytes_), nullptr};
    }

    // Where the first request begins. What is before the first extent is none of this transfer's.
    uint64_t first() const { return extents_.begin() / options_.alignment * options_.alignment; }

    // The largest number of bytes that one request copies: one alignment where all memory is aligned.
    uint64_t max_staged() const {
        uint64_t most = options_.alignment;
        for (uint64_t next = first(); next < extents_.end() && most < options_.block;) {
            Request request = at(next);
            bool is_staged = request.in_place == nullptr && !extents_.is_gap(next, request.end);
            if (is_staged) most = std::max(most, round_up(request.end - next, options_.alignment));
            next = request.end;
        }
        return most;
    }

  private:
    const Extents& extents_;
    const std::vector<Patch>& patches_;
    uint64_t size_;
    const DirectOptions& options_;
    bool in_place_;
    uint64_t min_nbytes_;
};

// Reports progress to `control`. A restart takes nothing back: reporting goes on when the second pass is further.
class ProgressReporter {
  public:
    explicit ProgressReporter(Control& control) : control_(control) {}

    void advance(uint64_t nbytes) {
        done_ += nbytes;
        if (done_ <= reported_) return;
        control_.advance(done_ - reported_);
        reported_ = done_;
    }
    void restart() { done_ = 0; }

  private:
    Control& control_;
    uint64_t done_ = 0;
    uint64_t reported_ = 0;
};

// Thrown when memory that the device read directly was changed during the write.
struct SourceChanged {};

bool same(const std::vector<Part>& one, const std::vector<Part>& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const Part& a, const Part& b) { return a.index == b.index && a.crc == b.crc; });
}

std::vector<uint32_t> write_all(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                                const DirectOptions& options, bool in_place, Control& control,
                                ProgressReporter& progress) {
    Checksums checksums(extents.all().size());
    BlockQueue queue(true, fd, options.depth, options.alignment, options.threads);
    const RequestPlanner planner(extents, patches, size, options, in_place);
    const uint64_t slot_nbytes = planner.max_staged();
    Staging staging(slot_nbytes * options.depth, options.alignment);
    std::vector<Part> parts;
    // Memory that is written in place is read twice: by the CPU for its checksum, and by the device. Unless the memory
    // is immutable, it is checksummed again afterwards, and a mismatch makes direct_write() write everything again.
    const bool immutable = control.immutable;
    std::vector<std::vector<Part>> sent_parts(options.depth);  // by slot
    try {
        uint64_t next = planner.first();
        const uint64_t last = extents.end();  // behind it a new file holds zeros already
        progress.advance(next);
        while (next < last || !queue.is_empty()) {
            Request request = next < last ? planner.at(next) : Request{next, nullptr};
            if (next < last && queue.has_room()) {
                control.check();
                if (extents.is_gap(next, request.end)) {  // a new file holds zeros already
                    progress.advance(request.end - next);
                    next = request.end;
                    continue;
                }
                uint64_t rounded = round_up(request.end - next, options.alignment);
                Block block{next, rounded, rounded, request.in_place, 0, request.in_place == nullptr};
                parts.clear();
                if (block.staged) {
                    block.memory = staging.data() + queue.next_slot() * slot_nbytes;
                    extents.gather(next, next + rounded, block.memory, parts);
                    checksums.add(parts);
                    checksums.apply(patches, next, request.end, block.memory);
                } else {
                    extents.measure(next, request.end, block.memory, parts);
                    checksums.add(parts);
                    sent_parts[queue.next_slot()] = parts;
                }
                queue.send(block);
                queue.flush();
                next = request.end;
            } else {
                unsigned slot;
                Block block = queue.receive(slot);
                if (!block.staged && !immutable) {
                    parts.clear();
                    extents.measure(block.offset, block.offset + block.needed, block.memory, parts);
                    if (!same(parts, sent_parts[slot])) throw SourceChanged();
                }
                progress.advance(std::min(block.needed, size - block.offset));
            }
        }
        if (next < size) progress.advance(size - next);
    } catch (...) {
        queue.drain();  // the staging memory must outlive the requests in flight
        throw;
    }
    return checksums.values();
}

}  // namespace

DirectWritten direct_write(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                           const DirectOptions& options, Control& control) {
    ProgressReporter progress(control);
    try {
        return {write_all(fd, size, extents, patches, options, true, control, progress), false};
    } catch (const SourceChanged&) {
        progress.restart();
        return {write_all(fd, size, extents, patches, options, false, control, progress), true};
    }
}

}  // namespace fastio
