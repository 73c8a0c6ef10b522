// Reads and writes files through the page cache on a few threads. This is the fast path for cached files, and works
// where io_uring is forbidden.
#pragma once

#include <cstdint>
#include <vector>

#include "transfer/control.hpp"
#include "transfer/direct.hpp"
#include "transfer/extents.hpp"

namespace fastio {

struct CachedOptions {
    uint64_t block;    // bytes in one thread's unit of work
    unsigned threads;  // including the calling thread
    bool write_back;   // start write-back of each block at once, because a sync follows
};

struct CachedReadOptions {
    uint64_t block;    // bytes in one thread's unit of work
    unsigned threads;  // including the calling thread
    bool cold;         // the file is not in the page cache: one thread then advises the kernel what to read ahead
};

// Writes the file image of `extents` and `patches`, `size` bytes. Returns the CRC-32 of each extent.
std::vector<uint32_t> cached_write(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                                   const CachedOptions& options, Control& control);

// Fills the memory of `extents`, or all of `span`. Returns the CRC-32 of each extent, of the bytes in memory.
std::vector<uint32_t> cached_read(int fd, const Extents& extents, const Span& span, const CachedReadOptions& options,
                                  Control& control);

}  // namespace fastio
