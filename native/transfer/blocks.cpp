#include "transfer/blocks.hpp"

#include <algorithm>

#include "memory/memory.hpp"

namespace fastio {

namespace {

// A shorter gap is read with its neighbours. Measured on a virtual disk: 65,000 requests of 8 KiB a second, or in the
// time of one, 16 to 37 KiB of large requests.
constexpr uint64_t kShortestGap = 32 << 10;

}  // namespace

Blocks::Blocks(const Extents& extents, const Span& span, const DirectOptions& options, uint64_t size)
    : extents_(extents),
      span_(span),
      options_(options),
      size_(size),
      end_(span.address != nullptr ? span.offset + span.nbytes : size),
      at_(span.address != nullptr ? span.offset : 0) {}

std::vector<Block> Blocks::take() {
    std::vector<Block> taken;
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t shift = reinterpret_cast<uintptr_t>(span_.address) - span_.offset;  // from file offset to address
    Block block;
    do {
        if (!next(block)) break;
        taken.push_back(block);
    } while ((at_ + shift) / kHugePage == (block.offset + shift) / kHugePage);
    return taken;
}

bool Blocks::next(Block& block) {
    if (span_.address == nullptr) skip_gap();
    if (at_ >= end_) return false;
    uint64_t stop = std::min((at_ / options_.block + 1) * options_.block, end_);
    if (span_.address == nullptr) stop = without_gap(stop);
    uint64_t rounded = round_up(stop - at_, options_.alignment);
    block = {at_, rounded, std::min(stop, size_) - at_, nullptr};
    if (span_.address != nullptr) {
        block.memory = span_.address + (at_ - span_.offset);
    } else if (rounded == stop - at_) {
        block.memory = extents_.aligned_memory(at_, stop, options_.alignment);
    }
    at_ = stop;
    return true;
}

void Blocks::skip_gap() {
    const auto& all = extents_.all();
    size_t index = extents_.first_after(at_);
    while (index < all.size() && all[index].nbytes == 0) ++index;
    if (index == all.size()) {
        at_ = end_;
    } else if (all[index].offset > at_) {
        at_ = std::max(at_, all[index].offset / options_.alignment * options_.alignment);
    }
}

// Returns the end of the last extent in [at_, stop) before a gap that is worth a request, rounded up to the alignment:
// so no byte of that gap, nor of one behind it, is read.
uint64_t Blocks::without_gap(uint64_t stop) const {
    const auto& all = extents_.all();
    uint64_t end = at_;
    for (size_t index = extents_.first_after(at_); index < all.size() && all[index].offset < stop; ++index) {
        if (all[index].nbytes == 0) continue;
        if (end > at_ && all[index].offset - end >= kShortestGap) break;
        end = all[index].end();
    }
    return std::min(stop, round_up(end, options_.alignment));
}

}  // namespace fastio
