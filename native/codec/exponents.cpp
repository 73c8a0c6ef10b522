#include "codec/exponents.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "support/errors.hpp"
#include "support/processor.hpp"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a payload is little-endian");

// The loops below are simple enough for the compiler to use vectors; these are the vectors.
#if defined(__x86_64__)
#define FASTIO_WITH_AVX2 __attribute__((target("avx2")))
#else
#define FASTIO_WITH_AVX2
#endif
#define FASTIO_INLINE inline __attribute__((always_inline))

namespace fastio {

namespace {

constexpr size_t BLOCK = 256;
constexpr size_t HEAD = 2;
constexpr size_t MOST_CODES = 15;  // of 4 bits, besides that of 0

bool has_avx2() {
#if defined(__x86_64__)
    return processor().avx2;
#else
    return false;
#endif
}

// The elements of a block, apart.
struct Block {
    uint8_t exponents[BLOCK];
    uint8_t rest[BLOCK];
    uint8_t least;
    uint8_t width;

    size_t nbytes() const { return HEAD + BLOCK + BLOCK / 8 * width; }
};

FASTIO_INLINE void split(const uint16_t* source, Block& block) {
    for (size_t i = 0; i < BLOCK; ++i) {
        block.exponents[i] = static_cast<uint8_t>(source[i] >> 7);
        block.rest[i] = static_cast<uint8_t>((source[i] & 0x7F) | (source[i] >> 8 & 0x80));
    }
    uint8_t before_least = 255, most = 0;  // 0 - 1 is 255: an exponent of 0 does not count
    for (size_t i = 0; i < BLOCK; ++i) {
        before_least = std::min(before_least, static_cast<uint8_t>(block.exponents[i] - 1));
        most = std::max(most, block.exponents[i]);
    }
    block.least = before_least == 255 ? 1 : static_cast<uint8_t>(before_least + 1);
    block.width = most < block.least + MOST_CODES ? 4 : 8;
}

FASTIO_INLINE void write(const Block& block, uint8_t* payload) {
    uint8_t codes[BLOCK];
    for (size_t i = 0; i < BLOCK; ++i) {
        const uint8_t code = static_cast<uint8_t>(block.exponents[i] - block.least + 1);
        codes[i] = block.exponents[i] == 0 ? 0 : code;
    }
    payload[0] = block.least;
    payload[1] = block.width;
    std::memcpy(payload + HEAD, block.rest, BLOCK);
    uint8_t* packed = payload + HEAD + BLOCK;
    if (block.width == 8) {
        std::memcpy(packed, codes, BLOCK);
        return;
    }
    for (size_t i = 0; i < BLOCK / 2; ++i) packed[i] = static_cast<uint8_t>(codes[i] | codes[i + BLOCK / 2] << 4);
}

FASTIO_INLINE void join(const uint8_t* rest, const uint8_t* packed, uint8_t least, uint8_t width,
                        uint16_t* destination) {
    uint8_t codes[BLOCK];
    if (width == 8) {
        std::memcpy(codes, packed, BLOCK);
    } else {
        for (size_t i = 0; i < BLOCK / 2; ++i) {
            codes[i] = packed[i] & 15;
            codes[i + BLOCK / 2] = packed[i] >> 4;
        }
    }
    for (size_t i = 0; i < BLOCK; ++i) {
        const uint8_t exponent = codes[i] == 0 ? 0 : static_cast<uint8_t>(codes[i] - 1 + least);
        destination[i] = static_cast<uint16_t>((rest[i] & 0x80) << 8 | exponent << 7 | (rest[i] & 0x7F));
    }
}

// Calls `each(elements)` with the 256 elements of each block, which lie in memory of ours for the last, partial one.
template <typename Each>
FASTIO_INLINE void for_each_block(const void* source, uint64_t elements, Each each) {
    const uint16_t* values = static_cast<const uint16_t*>(source);
    for (uint64_t at = 0; at < elements; at += BLOCK) {
        uint16_t copied[BLOCK] = {};
        const size_t count = static_cast<size_t>(std::min<uint64_t>(BLOCK, elements - at));
        if (count < BLOCK) std::memcpy(copied, values + at, count * 2);
        each(count < BLOCK ? copied : values + at);
    }
}

FASTIO_INLINE uint64_t nbytes_of(const void* source, uint64_t elements) {
    uint64_t nbytes = 0;
    Block block;
    for_each_block(source, elements, [&](const uint16_t* values) __attribute__((always_inline)) {
        split(values, block);
        nbytes += block.nbytes();
    });
    return nbytes;
}

// Returns whether the payload has exactly that size.
FASTIO_INLINE bool encode(const void* source, uint64_t elements, uint8_t* payload, uint64_t nbytes) {
    bool fits = true;
    Block block;
    for_each_block(source, elements, [&](const uint16_t* values) __attribute__((always_inline)) {
        split(values, block);
        fits = fits && block.nbytes() <= nbytes;
        if (!fits) return;
        write(block, payload);
        payload += block.nbytes();
        nbytes -= block.nbytes();
    });
    return fits && nbytes == 0;
}

// Returns the number of blocks; less than those of the elements if the next one is not whole, or is followed by more
// bytes than the elements need.
FASTIO_INLINE uint64_t decode(const uint8_t* payload, uint64_t nbytes, uint16_t* destination, uint64_t elements) {
    const uint64_t blocks = (elements + BLOCK - 1) / BLOCK;
    for (uint64_t block = 0; block < blocks; ++block) {
        if (nbytes < HEAD) return block;
        const uint8_t least = payload[0], width = payload[1];
        const size_t size = HEAD + BLOCK + BLOCK / 8 * width;
        if (least == 0 || (width != 4 && width != 8) || nbytes < size) return block;
        if (block + 1 == blocks && nbytes != size) return block;
        const uint8_t *rest = payload + HEAD, *packed = rest + BLOCK;
        const uint64_t left = elements - block * BLOCK;
        if (left >= BLOCK) {
            join(rest, packed, least, width, destination + block * BLOCK);
        } else {
            uint16_t last[BLOCK];
            join(rest, packed, least, width, last);
            std::memcpy(destination + block * BLOCK, last, left * 2);
        }
        payload += size;
        nbytes -= size;
    }
    return blocks;
}

FASTIO_WITH_AVX2 uint64_t nbytes_with_avx2(const void* source, uint64_t elements) {
    return nbytes_of(source, elements);
}

FASTIO_WITH_AVX2 bool encode_with_avx2(const void* source, uint64_t elements, uint8_t* payload, uint64_t nbytes) {
    return encode(source, elements, payload, nbytes);
}

FASTIO_WITH_AVX2 uint64_t decode_with_avx2(const uint8_t* payload, uint64_t nbytes, uint16_t* destination,
                                           uint64_t elements) {
    return decode(payload, nbytes, destination, elements);
}

}  // namespace

uint64_t exponents_nbytes(const void* source, uint64_t elements) {
    return has_avx2() ? nbytes_with_avx2(source, elements) : nbytes_of(source, elements);
}

void exponents_encode(const void* source, uint64_t elements, void* payload, uint64_t nbytes) {
    uint8_t* bytes = static_cast<uint8_t*>(payload);
    if (!(has_avx2() ? encode_with_avx2 : encode)(source, elements, bytes, nbytes)) {
        throw Refused("the tensor was changed while its exponents were packed");
    }
}

void exponents_decode(const void* payload, uint64_t nbytes, void* destination, uint64_t elements) {
    const uint8_t* bytes = static_cast<const uint8_t*>(payload);
    uint16_t* values = static_cast<uint16_t*>(destination);
    const uint64_t blocks = (elements + BLOCK - 1) / BLOCK;
    const uint64_t done = (has_avx2() ? decode_with_avx2 : decode)(bytes, nbytes, values, elements);
    if (done < blocks || (blocks == 0 && nbytes > 0)) {
        throw Refused("block " + std::to_string(done) + " of the payload is damaged");
    }
}

}  // namespace fastio
