// Which blocks of the store are whose (FlashNeuron, section 3.4: the LBA allocator). Pure: no file, no clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fastio {

// Contiguous runs of blocks from a bump pointer, so that what is written in order lies in order. When all is free the
// pointer goes back to 0: an iteration's writes are sequential. Where lifetimes overlap, freed runs are merged and
// used again, but only when the pointer has reached the end of what the files have: that is before they grow.
class LbaAllocator {
  public:
    // The first of `blocks` contiguous blocks; none: provision more first. `blocks` is at least 1.
    std::optional<uint64_t> allocate(uint64_t blocks);
    void free(uint64_t first, uint64_t blocks);

    // Blocks [0, blocks) exist from now on; never fewer than before.
    void provision(uint64_t blocks) { provisioned_ = blocks; }
    // How many blocks must exist for `blocks` more at the bump pointer.
    uint64_t needed(uint64_t blocks) const { return next_ + blocks; }
    uint64_t provisioned() const { return provisioned_; }
    uint64_t used() const { return used_; }

  private:
    uint64_t next_ = 0;
    uint64_t provisioned_ = 0;
    uint64_t used_ = 0;
    std::map<uint64_t, uint64_t> free_;  // first -> blocks; merged, and none touches the bump pointer
};

}  // namespace fastio
