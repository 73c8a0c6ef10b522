// Files around the page cache, by io_uring or by threads: the file must be open with O_DIRECT.
#pragma once

#include <cstdint>
#include <vector>

#include "transfer/control.hpp"
#include "transfer/extents.hpp"

namespace fastio {

struct DirectOptions {
    uint64_t block;      // bytes a request moves, a multiple of the alignment
    unsigned depth;      // requests in flight
    uint64_t alignment;  // of offset, length and memory, as the file asks for it: a power of 2, at least 4096
    unsigned threads;    // that move them, where there is no io_uring; 0: it does
};

struct DirectWritten {
    std::vector<uint32_t> checksums;  // of the extents
    bool copied;                      // memory changed meanwhile: all was written once more, from copies
};

// Write the file image that `extents` and `patches` describe, `size` bytes. The file may end up longer than `size`
// by less than one alignment: the caller truncates it. The checksums are of what is in the file, whatever changes.
DirectWritten direct_write(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                           const DirectOptions& options, Control& control);

// A region of memory that mirrors a region of the file; all of it may be filled. Null address: there is none.
struct Span {
    uint64_t offset = 0;
    uint64_t nbytes = 0;
    uint8_t* address = nullptr;
};

// Fill the memory of `extents`, or all of `span`; gives the checksums of the extents, of the bytes as they are in
// memory. When it returns or throws, nothing is in flight.
std::vector<uint32_t> direct_read(int fd, uint64_t size, Extents extents, const Span& span,
                                  const DirectOptions& options, Control& control);

}  // namespace fastio
