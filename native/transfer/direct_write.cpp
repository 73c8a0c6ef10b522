#include <algorithm>

#include "checksum/crc32.hpp"
#include "memory/memory.hpp"
#include "transfer/block_queue.hpp"
#include "transfer/direct.hpp"

namespace fastio {

namespace {

// Less than that is not worth a request of its own: it is copied beside its neighbours.
constexpr uint64_t kLeastLent = 256 << 10;

// What one request moves: memory that the device takes from where it lies, or if that is null, what is put together.
struct Cut {
    uint64_t end;
    uint8_t* lent;
};

// How a file is cut into requests. All of it is aligned but for its end.
class Cutter {
  public:
    // Unless it `lends`, all is copied.
    Cutter(const Extents& extents, const std::vector<Patch>& patches, uint64_t size, const DirectOptions& options,
           bool lends)
        : extents_(extents),
          patches_(patches),
          size_(size),
          options_(options),
          lends_(lends),
          least_(std::min(kLeastLent, options.block)) {}

    Cut at(uint64_t begin) const {
        if (!lends_) return {std::min(begin + options_.block, size_), nullptr};
        uint64_t end = std::min(extents_.lent_until(begin, options_.alignment), begin + options_.block);
        if (end >= begin + least_ && !any_patch(patches_, begin, end)) {
            return {end, extents_.lend(begin, end, options_.alignment)};
        }
        end = std::min(begin + options_.block, size_);
        return {extents_.next_lent(begin, end, options_.alignment, least_), nullptr};
    }

    // The most that is copied for one request: next to nothing where all lies as the device wants it.
    uint64_t room() const {
        uint64_t most = options_.alignment;
        for (uint64_t next = 0; next < size_ && most < options_.block;) {
            Cut cut = at(next);
            bool is_staged = cut.lent == nullptr && !extents_.is_gap(next, cut.end);
            if (is_staged) most = std::max(most, round_up(cut.end - next, options_.alignment));
            next = cut.end;
        }
        return most;
    }

  private:
    const Extents& extents_;
    const std::vector<Patch>& patches_;
    uint64_t size_;
    const DirectOptions& options_;
    bool lends_;
    uint64_t least_;
};

// Tells how far it is. What was told is not taken back where all begins anew.
class Teller {
  public:
    explicit Teller(Control& control) : control_(control) {}

    void advance(uint64_t nbytes) {
        done_ += nbytes;
        if (done_ <= told_) return;
        control_.advance(done_ - told_);
        told_ = done_;
    }
    void begin_anew() { done_ = 0; }

  private:
    Control& control_;
    uint64_t done_ = 0;
    uint64_t told_ = 0;
};

// Memory that was lent to the device was changed by somebody meanwhile.
struct Changed {};

bool same(const std::vector<Part>& one, const std::vector<Part>& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const Part& a, const Part& b) { return a.index == b.index && a.crc == b.crc; });
}

std::vector<uint32_t> write_all(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                                const DirectOptions& options, bool lends, Control& control, Teller& teller) {
    Checksums checksums(extents.all().size());
    Queue queue(true, fd, options.depth, options.alignment, options.threads);
    const Cutter cutter(extents, patches, size, options, lends);
    const uint64_t room = cutter.room();
    Staging staging(room * options.depth, options.alignment);
    std::vector<Part> parts;
    // Memory that is written from where it lies is read twice, by us and by the device. Unless nobody changes it, what
    // we read before is compared with what lies there afterwards: a file with wrong CRCs is written once more.
    const bool still = control.still;
    std::vector<std::vector<Part>> lent(options.depth);
    try {
        uint64_t next = 0;
        while (next < size || !queue.is_empty()) {
            Cut piece = next < size ? cutter.at(next) : Cut{next, nullptr};
            if (next < size && queue.has_room()) {
                control.check();
                if (extents.is_gap(next, piece.end)) {  // a new file is zeros already
                    teller.advance(piece.end - next);
                    next = piece.end;
                    continue;
                }
                uint64_t rounded = round_up(piece.end - next, options.alignment);
                Block block{next, rounded, rounded, piece.lent, 0, piece.lent == nullptr};
                parts.clear();
                if (block.staged) {
                    block.memory = staging.data() + queue.next_slot() * room;
                    extents.gather(next, next + rounded, block.memory, parts);
                    checksums.add(parts);
                    checksums.apply(patches, next, piece.end, block.memory);
                } else {
                    extents.measure(next, piece.end, block.memory, parts);
                    checksums.add(parts);
                    lent[queue.next_slot()] = parts;
                }
                queue.send(block);
                queue.flush();
                next = piece.end;
            } else {
                unsigned slot;
                Block block = queue.receive(slot);
                if (!block.staged && !still) {
                    parts.clear();
                    extents.measure(block.offset, block.offset + block.needed, block.memory, parts);
                    if (!same(parts, lent[slot])) throw Changed();
                }
                teller.advance(std::min(block.needed, size - block.offset));
            }
        }
    } catch (...) {
        queue.drain();  // the staging memory must outlive what is in flight
        throw;
    }
    return checksums.values();
}

}  // namespace

DirectWritten direct_write(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                           const DirectOptions& options, Control& control) {
    Teller teller(control);
    try {
        return {write_all(fd, size, extents, patches, options, true, control, teller), false};
    } catch (const Changed&) {
        teller.begin_anew();
        return {write_all(fd, size, extents, patches, options, false, control, teller), true};
    }
}

}  // namespace fastio
