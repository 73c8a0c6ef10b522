// Descriptors that are closed by another thread. Closing the last one of a file that has no name any more frees its
// pages and blocks: 65 ms for a GB in the page cache, which nobody need wait for.
#pragma once

namespace fastio {

// Closes the descriptor soon. Nobody may use it any more. A fork waits for it: a child would keep the file for ever.
void close_later(int fd) noexcept;

// Waits until all are closed.
void wait_closed() noexcept;

}  // namespace fastio
