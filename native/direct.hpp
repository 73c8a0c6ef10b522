// Files by io_uring, around the page cache: the file must be open with O_DIRECT.
#pragma once

#include <cstdint>
#include <vector>

#include "control.hpp"
#include "extents.hpp"

namespace fastio {

struct DirectOptions {
    uint64_t block;      // bytes a request moves, a multiple of the alignment
    unsigned depth;      // requests in flight
    uint64_t alignment;  // of offset, length and memory, as the file asks for it
};

// What moved from or to the tensors' own memory and what went through staging.
struct DirectResult {
    std::vector<uint32_t> checksums;
    uint64_t zero_copy = 0;
    uint64_t staged = 0;
};

// Write the file image that `extents` and `patches` describe, `size` bytes. The file may end up longer than `size`
// by less than one alignment: the caller truncates it.
DirectResult direct_write(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                          const DirectOptions& options, Control& control);

// A region of memory that mirrors a region of the file; all of it may be filled. Null address: there is none.
struct Span {
    uint64_t offset = 0;
    uint64_t nbytes = 0;
    uint8_t* address = nullptr;
};

DirectResult direct_read(int fd, uint64_t size, const Extents& extents, const Span& span, const DirectOptions& options,
                         Control& control);

}  // namespace fastio
