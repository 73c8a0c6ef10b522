#include "checksum/block_crcs.hpp"

#include <algorithm>
#include <string>

#include "checksum/crc32.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

uint64_t count_of(uint64_t nbytes, uint64_t block) {
    if (block == 0) throw Refused("blocks have at least one byte, got 0");
    return nbytes / block + (nbytes % block != 0);
}

}  // namespace

std::vector<uint32_t> crc32_blocks(const uint8_t* data, uint64_t nbytes, uint64_t block) {
    std::vector<uint32_t> crcs;
    crcs.reserve(count_of(nbytes, block));
    for (uint64_t at = 0; at < nbytes; at += std::min(block, nbytes - at)) {
        crcs.push_back(crc32(0, data + at, std::min(block, nbytes - at)));
    }
    return crcs;
}

uint32_t crc32_of_blocks(const uint32_t* crcs, size_t count, uint64_t nbytes, uint64_t block) {
    if (count_of(nbytes, block) != count) {
        throw Refused("expected the CRC-32s of " + std::to_string(count_of(nbytes, block)) + " blocks, got " +
                      std::to_string(count));
    }
    uint32_t whole = 0;
    for (size_t number = 0; number < count; ++number) {
        whole = crc32_combine(whole, crcs[number], std::min(block, nbytes - number * block));
    }
    return whole;
}

}  // namespace fastio
