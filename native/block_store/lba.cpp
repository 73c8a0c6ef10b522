#include "block_store/lba.hpp"

#include <iterator>

namespace fastio {

std::optional<uint64_t> LbaAllocator::allocate(uint64_t blocks) {
    if (blocks <= provisioned_ - next_) {
        uint64_t first = next_;
        next_ += blocks;
        used_ += blocks;
        return first;
    }
    for (auto run = free_.begin(); run != free_.end(); ++run) {
        auto [first, length] = *run;
        if (length < blocks) continue;
        free_.erase(run);
        if (length > blocks) free_.emplace(first + blocks, length - blocks);
        used_ += blocks;
        return first;
    }
    return std::nullopt;
}

void LbaAllocator::free(uint64_t first, uint64_t blocks) {
    used_ -= blocks;
    auto next = free_.lower_bound(first);
    if (next != free_.end() && next->first == first + blocks) {
        blocks += next->second;
        next = free_.erase(next);
    }
    if (next != free_.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second == first) {
            first = previous->first;
            blocks += previous->second;
            free_.erase(previous);
        }
    }
    if (first + blocks == next_) {
        next_ = first;
    } else {
        free_.emplace(first, blocks);
    }
}

}  // namespace fastio
