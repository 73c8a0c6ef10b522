// Which addresses a device uses for which memory: an I/O virtual address space of our own. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace fastio {

class IovaAllocator {
  public:
    struct Range {
        uint64_t first, last;  // both belong to it
    };

    // What the IOMMU can translate for all devices so far. Addresses below 1 MiB are never given: a null that a device
    // follows by mistake must fault. What is allocated stays.
    void set_ranges(const std::vector<Range>& ranges);
    // The lowest address with this many bytes behind it that is `phase` modulo `alignment`; none: the space is full.
    std::optional<uint64_t> allocate(uint64_t nbytes, uint64_t alignment, uint64_t phase = 0);
    void free(uint64_t address) { used_.erase(address); }

  private:
    std::vector<Range> ranges_;
    std::map<uint64_t, uint64_t> used_;  // first -> last
};

}  // namespace fastio
