#include <algorithm>
#include <memory>

#include "direct.hpp"
#include "memory.hpp"
#include "queue.hpp"

namespace fastio {

namespace {

// The blocks of a file that hold extents, in order; with a span, its own pieces.
class Blocks {
  public:
    Blocks(const Extents& extents, const Span& span, const DirectOptions& options, uint64_t size)
        : extents_(extents), span_(span), options_(options), size_(size) {
        at_ = span.address != nullptr ? span.offset : 0;
    }

    bool next(Block& block) {
        uint64_t end = span_.address != nullptr ? span_.offset + span_.nbytes : size_;
        if (span_.address == nullptr) skip_gap(end);
        if (at_ >= end) return false;
        uint64_t stop = std::min((at_ / options_.block + 1) * options_.block, end);
        uint64_t rounded = (stop - at_ + options_.alignment - 1) / options_.alignment * options_.alignment;
        block = {at_, rounded, std::min(stop, size_) - at_, nullptr, 0, false};
        if (span_.address != nullptr) {
            block.memory = span_.address + (at_ - span_.offset);
        } else if (rounded == stop - at_) {
            block.memory = extents_.lend(at_, stop, options_.alignment);
        }
        at_ = stop;
        return true;
    }

  private:
    const Extents& extents_;
    const Span& span_;
    const DirectOptions& options_;
    uint64_t size_;
    uint64_t at_;

    void skip_gap(uint64_t end) {
        const auto& all = extents_.all();
        size_t index = extents_.first_after(at_);
        while (index < all.size() && all[index].nbytes == 0) ++index;
        if (index == all.size()) {
            at_ = end;
        } else if (all[index].offset > at_) {
            at_ = std::max(at_, all[index].offset / options_.alignment * options_.alignment);
        }
    }
};

}  // namespace

DirectResult direct_read(int fd, uint64_t size, const Extents& extents, const Span& span, const DirectOptions& options,
                         Control& control) {
    DirectResult result;
    // Blocks finish in any order: their checksums are kept apart and joined in file order at the end.
    std::vector<std::vector<Part>> parts;
    std::vector<size_t> numbers(options.depth);
    std::unique_ptr<Staging> staging;
    if (span.address == nullptr) staging = std::make_unique<Staging>(options.block * options.depth);
    Queue queue(false, fd, options.depth, options.alignment);
    Blocks blocks(extents, span, options, size);
    try {
        Block block;
        bool more = blocks.next(block);
        while (more || !queue.is_empty()) {
            if (more && queue.has_room()) {
                control.check();
                unsigned slot = queue.next_slot();
                if (span.address != nullptr) {
                    populate(block.memory, block.nbytes);
                    result.zero_copy += block.needed;
                } else if (block.memory != nullptr) {
                    result.zero_copy += block.needed;
                } else {
                    block.memory = staging->data() + slot * options.block;
                    block.staged = true;
                    result.staged += block.needed;
                }
                numbers[slot] = parts.size();
                parts.emplace_back();
                queue.send(block);
                queue.flush();
                more = blocks.next(block);
            } else {
                unsigned slot;
                Block done = queue.receive(slot);
                uint64_t end = done.offset + done.needed;
                std::vector<Part>& measured = parts[numbers[slot]];
                if (done.staged) {
                    extents.scatter(done.offset, end, done.memory, measured);
                } else {
                    extents.measure(done.offset, end, done.memory, measured);
                }
                control.advance(done.needed);
            }
        }
    } catch (...) {
        queue.drain();
        throw;
    }
    Checksums checksums(extents.all().size());
    for (const std::vector<Part>& measured : parts) checksums.add(measured);
    result.checksums = checksums.values();
    return result;
}

}  // namespace fastio
