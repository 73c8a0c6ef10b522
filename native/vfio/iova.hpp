// Allocates I/O virtual addresses (IOVAs) for devices. It does no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace fastio {

class IovaAllocator {
  public:
    struct Range {
        uint64_t first, last;  // inclusive
    };

    // Sets the ranges that the IOMMU translates for all devices. Existing allocations stay. Addresses below 1 MiB are
    // never allocated, so that a null pointer in a device faults.
    void set_ranges(const std::vector<Range>& ranges);
    // Returns the lowest free address for `nbytes` that is `phase` modulo `alignment`; nullopt if there is none.
    std::optional<uint64_t> allocate(uint64_t nbytes, uint64_t alignment, uint64_t phase = 0);
    void free(uint64_t address) { used_.erase(address); }

  private:
    std::vector<Range> ranges_;
    std::map<uint64_t, uint64_t> used_;  // first -> last
};

}  // namespace fastio
