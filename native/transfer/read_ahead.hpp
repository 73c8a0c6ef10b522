// Reads from the disk begun before anybody waits for them, by way of the page cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transfer/extents.hpp"

namespace fastio {

// Tells the kernel what a reader in order will want soon. Its own reading ahead begins with little, knows nothing of
// where the reader will stop, and leaves the disk idle between two windows: cold files of 8 to 128 MiB take a tenth to
// a quarter less time told. Not thread-safe.
class ReadAhead {
  public:
    // What will be read: the extents, or all of [begin, end) where `whole`. They must outlive this.
    ReadAhead(int fd, const Extents& extents, uint64_t begin, uint64_t end, bool whole)
        : fd_(fd), all_(extents.all()), next_(begin / kPiece), end_(end), whole_(whole) {}

    // The reader is at `offset`.
    void reach(uint64_t offset);

  private:
    // Enough to keep a disk busy while what arrived is copied and checked.
    static constexpr uint64_t kAhead = 8 << 20;
    // What the kernel's usual window has: of more at a time it may take part alone.
    static constexpr uint64_t kPiece = 128 << 10;

    void tell(uint64_t from, uint64_t to);

    int fd_;
    const std::vector<Extent>& all_;
    size_t index_ = 0;
    uint64_t next_;  // the first piece not told yet
    uint64_t end_;
    bool whole_;
};

}  // namespace fastio
