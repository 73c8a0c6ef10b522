// The LBA allocator (FlashNeuron, section 3.4): assigns blocks of the store. It uses no file and no clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fastio {

// Allocates contiguous runs of blocks from a bump pointer, so that consecutive writes are sequential on disk. When all
// blocks are free the pointer returns to 0, so each iteration writes sequentially. If lifetimes overlap, freed runs are
// merged and reused, but only once the pointer has reached the end of the provisioned blocks, before the files grow.
class LbaAllocator {
  public:
    // Returns the first of `blocks` contiguous blocks, at least 1; nullopt if more must be provisioned first.
    std::optional<uint64_t> allocate(uint64_t blocks);
    void free(uint64_t first, uint64_t blocks);

    // Tells that blocks [0, blocks) exist; never fewer than before.
    void provision(uint64_t blocks) { provisioned_ = blocks; }
    // The number of blocks that must exist to allocate `blocks` at the bump pointer.
    uint64_t needed(uint64_t blocks) const { return next_ + blocks; }
    uint64_t provisioned() const { return provisioned_; }
    uint64_t used() const { return used_; }

  private:
    uint64_t next_ = 0;
    uint64_t provisioned_ = 0;
    uint64_t used_ = 0;
    std::map<uint64_t, uint64_t> free_;  // first -> blocks; merged, and none adjoins the bump pointer
};

}  // namespace fastio
