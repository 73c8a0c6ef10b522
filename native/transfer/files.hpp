// What the kernel says and does about a file as a whole: its pages in the cache, direct I/O, its blocks.
#pragma once

#include <cstdint>
#include <optional>

namespace fastio {

// The share, 0 to 1, of the first `nbytes` of the file that is in the page cache (cachestat, else mincore).
// Throws SystemError.
double resident(int fd, uint64_t nbytes);

// Bytes; both are 0 where the file takes no direct I/O.
struct DirectAlignment {
    uint32_t memory;  // of the buffer's address
    uint32_t offset;  // of the file offset and the length
};

// statx(STATX_DIOALIGN); nothing where the kernel (before 6.1) or the filesystem does not say. Throws SystemError.
std::optional<DirectAlignment> direct_alignment(int fd);

// Give the file `size` bytes and, where the filesystem can, the blocks for them: a full disk shows before the first
// byte is written. Throws SystemError.
void allocate(int fd, uint64_t size);

}  // namespace fastio
