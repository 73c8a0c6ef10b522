// CRC-32s of memory block by block, so that a part of it can be checked alone. The last block may be shorter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

// Returns the CRC-32 of each block of `nbytes` at `data`. Throws Refused if `block` is 0.
std::vector<uint32_t> crc32_blocks(const uint8_t* data, uint64_t nbytes, uint64_t block);

// Returns the CRC-32 of `nbytes` in `count` blocks, from those of the blocks. Throws Refused if they are not so many.
uint32_t crc32_of_blocks(const uint32_t* crcs, size_t count, uint64_t nbytes, uint64_t block);

}  // namespace fastio
