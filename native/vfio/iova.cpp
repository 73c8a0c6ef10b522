#include "vfio/iova.hpp"

#include <algorithm>

namespace fastio {

namespace {

constexpr uint64_t kLowest = 1 << 20;

// Returns the lowest address from `from` on that is `phase` modulo `alignment`, a power of 2. It wraps around if there
// is none.
uint64_t next_address(uint64_t from, uint64_t alignment, uint64_t phase) {
    return from + ((phase - from) & (alignment - 1));
}

}  // namespace

void IovaAllocator::set_ranges(const std::vector<Range>& ranges) {
    ranges_ = ranges;
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
}

std::optional<uint64_t> IovaAllocator::allocate(uint64_t nbytes, uint64_t alignment, uint64_t phase) {
    for (const Range& range : ranges_) {
        uint64_t lowest = std::max(range.first, kLowest);
        uint64_t address = next_address(lowest, alignment, phase);
        while (address >= lowest && address <= range.last && nbytes - 1 <= range.last - address) {
            const uint64_t last = address + (nbytes - 1);
            // Look at the last allocation that begins at or before `last`: if it ends before `address`, all do.
            auto after = used_.upper_bound(last);
            if (after == used_.begin() || std::prev(after)->second < address) {
                used_.emplace(address, last);
                return address;
            }
            lowest = std::prev(after)->second + 1;
            if (lowest == 0) break;  // it ends at the end of the address space
            address = next_address(lowest, alignment, phase);
        }
    }
    return std::nullopt;
}

}  // namespace fastio
