// Queries and calls on a whole file: its share of the page cache, direct I/O alignment, block allocation.
#pragma once

#include <cstdint>
#include <optional>

namespace fastio {

// Returns the share, 0 to 1, of the first `nbytes` of the file that is in the page cache (by cachestat, else mincore),
// or, if `sampled`, of pieces that are spread over a large file. Throws SystemError.
double resident(int fd, uint64_t nbytes, bool sampled);

// In bytes. Both are 0 if the file does not support direct I/O.
struct DirectAlignment {
    uint32_t memory;  // of the buffer's address
    uint32_t offset;  // of the file offset and the length
};

// Returns statx(STATX_DIOALIGN); nullopt if the kernel (before 6.1) or the filesystem does not report it. Throws
// SystemError.
std::optional<DirectAlignment> direct_alignment(int fd);

// Sets the file's size and allocates its blocks, if the filesystem can, so that a full disk fails before the first byte
// is written. Throws SystemError.
void allocate(int fd, uint64_t size);

}  // namespace fastio
