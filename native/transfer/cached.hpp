// Files through the page cache, by a few threads: the fast way for what is cached, and where io_uring is forbidden.
#pragma once

#include <cstdint>
#include <vector>

#include "transfer/control.hpp"
#include "transfer/direct.hpp"
#include "transfer/extents.hpp"

namespace fastio {

struct CachedOptions {
    uint64_t block;    // bytes that a thread takes at a time
    unsigned threads;  // the calling one included
    bool write_back;   // start write-back of each block at once, for a sync that follows
};

struct CachedReadOptions {
    uint64_t block;    // bytes that a thread takes at a time
    unsigned threads;  // the calling one included
    bool cold;         // the page cache has it not: with one thread, the kernel is told what to read ahead
};

// Write the image of `extents` and `patches`, `size` bytes. Gives one checksum per extent.
std::vector<uint32_t> cached_write(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                                   const CachedOptions& options, Control& control);

std::vector<uint32_t> cached_read(int fd, const Extents& extents, const Span& span, const CachedReadOptions& options,
                                  Control& control);

}  // namespace fastio
