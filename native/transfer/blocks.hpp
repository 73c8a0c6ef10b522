// Divides a file into blocks and hands them to the reader threads in file order.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "transfer/block_queue.hpp"
#include "transfer/direct.hpp"
#include "transfer/extents.hpp"

namespace fastio {

// The blocks of the span, or, without one, those blocks of the file that hold extents. A block's memory is the final
// place of its bytes; it is null if they must be staged.
class Blocks {
  public:
    // Keeps references: the arguments must outlive this object.
    Blocks(const Extents& extents, const Span& span, const DirectOptions& options, uint64_t size);

    // Returns the next blocks that share a huge page, so that only one thread faults it in. Empty at the end.
    // Thread-safe.
    std::vector<Block> take();

  private:
    const Extents& extents_;
    const Span& span_;
    const DirectOptions& options_;
    const uint64_t size_, end_;
    std::mutex mutex_;
    uint64_t at_;

    bool next(Block& block);
    void skip_gap();
    uint64_t without_gap(uint64_t stop) const;
};

}  // namespace fastio
