// Reads and writes files around the page cache, by io_uring or threads. The file must be open with O_DIRECT.
#pragma once

#include <cstdint>
#include <vector>

#include "transfer/control.hpp"
#include "transfer/extents.hpp"

namespace fastio {

struct DirectOptions {
    uint64_t block;        // bytes in one request, a multiple of the alignment
    unsigned depth;        // requests in flight
    uint64_t alignment;    // that the file requires of offset, length and memory: a power of 2, at least 4096
    unsigned threads;      // of each reader, or of the writer; 0: use io_uring
    bool staged = false;   // large reads pass through staging blocks, even those that could be read in place
    unsigned readers = 2;  // threads that share a large read, including the calling one
};

struct DirectWritten {
    std::vector<uint32_t> checksums;  // the CRC-32 of each extent
    bool copied;                      // memory changed during the write, so everything was written again from copies
};

// Writes the file image of `extents` and `patches`, `size` bytes. The file may end up longer than `size` by less than
// one alignment: the caller truncates it. The checksums match the file even if the memory changes during the write.
DirectWritten direct_write(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                           const DirectOptions& options, Control& control);

// A region of memory that mirrors a region of the file, gaps included. A null address means there is no span.
struct Span {
    uint64_t offset = 0;
    uint64_t nbytes = 0;
    uint8_t* address = nullptr;
};

// Fills the memory of `extents`, or all of `span`. Returns the CRC-32 of each extent, of the bytes in memory. Nothing
// is in flight when it returns or throws.
std::vector<uint32_t> direct_read(int fd, uint64_t size, Extents extents, const Span& span,
                                  const DirectOptions& options, Control& control);

}  // namespace fastio
