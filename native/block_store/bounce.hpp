// Aligned buffers for data that a device cannot access directly: unaligned memory, and partial last blocks.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <vector>

#include "memory/memory.hpp"

namespace fastio {

// A few slices of one mapping. take() returns the most recently used one, which is still in the cache.
class Bounce {
  public:
    static constexpr uint64_t kSlice = 512 << 10;

    // Throws SystemError if there is no memory.
    Bounce() {
        // The driver may have these pages pinned, and fork copies pinned pages at once.
        madvise(mapping_.data(), mapping_.nbytes(), MADV_DONTFORK);
        for (uint64_t slice = kSlices; slice > 0; --slice) free_.push_back(mapping_.data() + (slice - 1) * kSlice);
    }

    // Returns a slice, or null while all are in use.
    uint8_t* take() {
        if (free_.empty()) return nullptr;
        uint8_t* slice = free_.back();
        free_.pop_back();
        return slice;
    }

    void give_back(uint8_t* slice) { free_.push_back(slice); }

    uint8_t* data() const { return mapping_.data(); }
    uint64_t nbytes() const { return mapping_.nbytes(); }

  private:
    static constexpr uint64_t kSlices = 8;  // 4 MiB: half of the usual limit on pinned memory (RLIMIT_MEMLOCK)

    Mapping mapping_{kSlices * kSlice};
    std::vector<uint8_t*> free_;
};

}  // namespace fastio
