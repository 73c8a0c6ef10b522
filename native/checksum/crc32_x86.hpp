// CRC-32 by folding with carry-less multiplication, 128, 256 or 512 bits at a time. Included by crc32.cpp only.
//
// A register holds the message so far as a polynomial congruent to it modulo P. Each step multiplies both halves of
// every 128-bit lane by x^n mod P, which moves them past the next bytes, and adds (xors) those bytes in.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "checksum/crc32_polynomial.hpp"

#define FASTIO_SSE __attribute__((target("sse4.1,pclmul")))
#define FASTIO_AVX2 __attribute__((target("avx2,vpclmulqdq,pclmul")))
#define FASTIO_AVX512 __attribute__((target("avx512f,vpclmulqdq,pclmul")))

namespace fastio::detail {

uint32_t slice_update(uint32_t state, const uint8_t* source, size_t nbytes) noexcept;

// What becomes of the bytes that are checksummed. kStreamed: stored past the caches; the destination starts on a cache
// line then.
enum class Copied { kNot, kCached, kStreamed };

// The bytes behind the last whole registers: their destination is not aligned.
constexpr Copied of_rest(Copied copied) { return copied == Copied::kNot ? copied : Copied::kCached; }

// The asm barriers keep a value that is both stored and checksummed in its register. Without them the compiler could
// load it a second time, and if the source changed in between, the copy would not match its CRC.

template <Copied copied>
FASTIO_SSE inline __m128i take16(uint8_t*& destination, const uint8_t*& source) {
    __m128i data = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    source += 16;
    if constexpr (copied != Copied::kNot) {
        asm volatile("" : "+x"(data));
        auto* to = reinterpret_cast<__m128i*>(destination);
        copied == Copied::kStreamed ? _mm_stream_si128(to, data) : _mm_storeu_si128(to, data);
        destination += 16;
    }
    return data;
}

FASTIO_SSE inline __m128i fold16(__m128i x, __m128i constants, __m128i data) {
    const __m128i low = _mm_clmulepi64_si128(x, constants, 0x00);
    const __m128i high = _mm_clmulepi64_si128(x, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

FASTIO_SSE inline __m128i constants16(FoldPair pair) {
    return _mm_set_epi64x(static_cast<int64_t>(pair.high), static_cast<int64_t>(pair.low));
}

// Folds in the rest 16 bytes at a time, then reduces the register and the last bytes with the tables.
template <Copied copied>
FASTIO_SSE inline uint32_t finish16(__m128i x, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept {
    constexpr FoldPair by16 = fold_pair(8 * 16);
    for (; nbytes >= 16; nbytes -= 16) x = fold16(x, constants16(by16), take16<copied>(destination, source));
    uint8_t bytes[32];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), x);
    for (size_t i = 0; i < nbytes; ++i) {
        uint8_t byte = source[i];
        asm volatile("" : "+r"(byte));
        bytes[16 + i] = byte;
        if constexpr (copied != Copied::kNot) destination[i] = byte;
    }
    return slice_update(0, bytes, 16 + nbytes);
}

// At least 64 bytes, in four accumulators.
template <Copied copied>
FASTIO_SSE uint32_t fold_sse(uint32_t state, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept {
    constexpr FoldPair by64 = fold_pair(8 * 64);
    constexpr FoldPair by16 = fold_pair(8 * 16);
    const __m128i far = constants16(by64);
    const __m128i near = constants16(by16);
    __m128i x0 = take16<copied>(destination, source);
    __m128i x1 = take16<copied>(destination, source);
    __m128i x2 = take16<copied>(destination, source);
    __m128i x3 = take16<copied>(destination, source);
    x0 = _mm_xor_si128(x0, _mm_cvtsi32_si128(static_cast<int>(state)));
    for (nbytes -= 64; nbytes >= 64; nbytes -= 64) {
        x0 = fold16(x0, far, take16<copied>(destination, source));
        x1 = fold16(x1, far, take16<copied>(destination, source));
        x2 = fold16(x2, far, take16<copied>(destination, source));
        x3 = fold16(x3, far, take16<copied>(destination, source));
    }
    const __m128i x = fold16(fold16(fold16(x0, near, x1), near, x2), near, x3);
    return finish16<of_rest(copied)>(x, destination, source, nbytes);
}

template <Copied copied>
FASTIO_AVX2 inline __m256i take32(uint8_t*& destination, const uint8_t*& source) {
    __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    source += 32;
    if constexpr (copied != Copied::kNot) {
        asm volatile("" : "+x"(data));
        auto* to = reinterpret_cast<__m256i*>(destination);
        copied == Copied::kStreamed ? _mm256_stream_si256(to, data) : _mm256_storeu_si256(to, data);
        destination += 32;
    }
    return data;
}

FASTIO_AVX2 inline __m256i fold32(__m256i x, __m256i constants, __m256i data) {
    const __m256i low = _mm256_clmulepi64_epi128(x, constants, 0x00);
    const __m256i high = _mm256_clmulepi64_epi128(x, constants, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), data);
}

FASTIO_AVX2 inline __m256i constants32(FoldPair pair) { return _mm256_broadcastsi128_si256(constants16(pair)); }

// At least 128 bytes, in four accumulators.
template <Copied copied>
FASTIO_AVX2 uint32_t fold_avx2(uint32_t state, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept {
    constexpr FoldPair by128 = fold_pair(8 * 128);
    constexpr FoldPair by32 = fold_pair(8 * 32);
    constexpr FoldPair by16 = fold_pair(8 * 16);
    const __m256i far = constants32(by128);
    const __m256i near = constants32(by32);
    __m256i x0 = take32<copied>(destination, source);
    __m256i x1 = take32<copied>(destination, source);
    __m256i x2 = take32<copied>(destination, source);
    __m256i x3 = take32<copied>(destination, source);
    x0 = _mm256_xor_si256(x0, _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(state))));
    for (nbytes -= 128; nbytes >= 128; nbytes -= 128) {
        x0 = fold32(x0, far, take32<copied>(destination, source));
        x1 = fold32(x1, far, take32<copied>(destination, source));
        x2 = fold32(x2, far, take32<copied>(destination, source));
        x3 = fold32(x3, far, take32<copied>(destination, source));
    }
    __m256i x = fold32(fold32(fold32(x0, near, x1), near, x2), near, x3);
    for (; nbytes >= 32; nbytes -= 32) x = fold32(x, near, take32<copied>(destination, source));
    // Fold the lower lane into the upper one.
    const __m128i y = fold16(_mm256_castsi256_si128(x), constants16(by16), _mm256_extracti128_si256(x, 1));
    return finish16<of_rest(copied)>(y, destination, source, nbytes);
}

template <Copied copied>
FASTIO_AVX512 inline __m512i take64(uint8_t*& destination, const uint8_t*& source) {
    __m512i data = _mm512_loadu_si512(source);
    source += 64;
    if constexpr (copied != Copied::kNot) {
        asm volatile("" : "+v"(data));
        auto* to = reinterpret_cast<__m512i*>(destination);
        copied == Copied::kStreamed ? _mm512_stream_si512(to, data) : _mm512_storeu_si512(to, data);
        destination += 64;
    }
    return data;
}

FASTIO_AVX512 inline __m512i fold64(__m512i x, __m512i constants, __m512i data) {
    const __m512i low = _mm512_clmulepi64_epi128(x, constants, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(x, constants, 0x11);
    return _mm512_ternarylogic_epi64(low, high, data, 0x96);  // low ^ high ^ data
}

FASTIO_AVX512 inline __m512i constants64(FoldPair pair) {
    const auto low = static_cast<int64_t>(pair.low);
    const auto high = static_cast<int64_t>(pair.high);
    return _mm512_set4_epi64(high, low, high, low);
}

// At least 256 bytes, in four accumulators, which hide the latency of the multiplications on current cores.
template <Copied copied>
FASTIO_AVX512 uint32_t fold_avx512(uint32_t state, uint8_t* destination, const uint8_t* source,
                                   size_t nbytes) noexcept {
    constexpr FoldPair by256 = fold_pair(8 * 256);
    constexpr FoldPair by64 = fold_pair(8 * 64);
    constexpr FoldPair by48 = fold_pair(8 * 48);
    constexpr FoldPair by32 = fold_pair(8 * 32);
    constexpr FoldPair by16 = fold_pair(8 * 16);
    const __m512i far = constants64(by256);
    const __m512i near = constants64(by64);
    __m512i x0 = take64<copied>(destination, source);
    __m512i x1 = take64<copied>(destination, source);
    __m512i x2 = take64<copied>(destination, source);
    __m512i x3 = take64<copied>(destination, source);
    x0 = _mm512_xor_si512(x0, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
    for (nbytes -= 256; nbytes >= 256; nbytes -= 256) {
        x0 = fold64(x0, far, take64<copied>(destination, source));
        x1 = fold64(x1, far, take64<copied>(destination, source));
        x2 = fold64(x2, far, take64<copied>(destination, source));
        x3 = fold64(x3, far, take64<copied>(destination, source));
    }
    __m512i x = fold64(fold64(fold64(x0, near, x1), near, x2), near, x3);
    for (; nbytes >= 64; nbytes -= 64) x = fold64(x, near, take64<copied>(destination, source));
    // Fold the first three lanes into the last one, each over its own distance.
    alignas(64) __m128i lanes[4];
    _mm512_store_si512(lanes, x);
    __m128i y = lanes[3];
    y = fold16(lanes[2], constants16(by16), y);
    y = fold16(lanes[1], constants16(by32), y);
    y = fold16(lanes[0], constants16(by48), y);
    return finish16<of_rest(copied)>(y, destination, source, nbytes);
}

}  // namespace fastio::detail
