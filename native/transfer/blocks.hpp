// The blocks in which a file is read, in order, dealt out to who reads them.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "transfer/block_queue.hpp"
#include "transfer/direct.hpp"
#include "transfer/extents.hpp"

namespace fastio {

// The blocks of a file that hold extents; with a span, its own pieces. A block's memory is where its bytes may land,
// null where they cannot be read in place.
class Blocks {
  public:
    // They stay where they are as long as this does.
    Blocks(const Extents& extents, const Span& span, const DirectOptions& options, uint64_t size);

    // The next ones that lie in the same huge page, so that no two threads fault it in; none at the end. Any thread.
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
