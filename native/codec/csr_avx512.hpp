// CSR-128 with the compress and expand instructions of AVX-512. Included by csr_kernels.cpp only.
//
// They are used between registers only: compressing to memory is microcoded on AMD Zen 4 and several times slower.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define FASTIO_AVX512F __attribute__((target("avx512f,popcnt")))
#define FASTIO_VBMI2 __attribute__((target("avx512f,avx512bw,avx512vbmi2,popcnt")))

namespace fastio::detail {

// How a register of one itemsize finds, packs and spreads its non-zeros. Two-byte elements need VBMI2.
struct Avx512x4 {
    static constexpr size_t LANES = 16;
    FASTIO_AVX512F static uint64_t nonzeros(__m512i x) { return _mm512_test_epi32_mask(x, x); }
    FASTIO_AVX512F static __m512i compress(uint64_t mask, __m512i x) {
        return _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), x);
    }
    FASTIO_AVX512F static __m512i expand(uint64_t mask, __m512i x) {
        return _mm512_maskz_expand_epi32(static_cast<__mmask16>(mask), x);
    }
};

struct Avx512x8 {
    static constexpr size_t LANES = 8;
    FASTIO_AVX512F static uint64_t nonzeros(__m512i x) { return _mm512_test_epi64_mask(x, x); }
    FASTIO_AVX512F static __m512i compress(uint64_t mask, __m512i x) {
        return _mm512_maskz_compress_epi64(static_cast<__mmask8>(mask), x);
    }
    FASTIO_AVX512F static __m512i expand(uint64_t mask, __m512i x) {
        return _mm512_maskz_expand_epi64(static_cast<__mmask8>(mask), x);
    }
};

struct Avx512x2 {
    static constexpr size_t LANES = 32;
    FASTIO_VBMI2 static uint64_t nonzeros(__m512i x) { return _mm512_test_epi16_mask(x, x); }
    FASTIO_VBMI2 static __m512i compress(uint64_t mask, __m512i x) {
        return _mm512_maskz_compress_epi16(static_cast<__mmask32>(mask), x);
    }
    FASTIO_VBMI2 static __m512i expand(uint64_t mask, __m512i x) {
        return _mm512_maskz_expand_epi16(static_cast<__mmask32>(mask), x);
    }
};

// The three loops, once for each instruction set: a function is inlined only into one with the same target.
#define FASTIO_CSR_AVX512(TARGET, PREFIX)                                                                     \
    template <typename Lanes>                                                                                 \
    TARGET uint64_t PREFIX##_count(const uint8_t* source, size_t rows) noexcept {                             \
        uint64_t nonzeros = 0;                                                                                \
        for (size_t i = 0; i < rows * 128 / Lanes::LANES; ++i, source += 64) {                                \
            nonzeros += static_cast<uint64_t>(_mm_popcnt_u64(Lanes::nonzeros(_mm512_loadu_si512(source))));   \
        }                                                                                                     \
        return nonzeros;                                                                                      \
    }                                                                                                         \
    template <typename Lanes>                                                                                 \
    TARGET void PREFIX##_pack(const uint8_t* source, size_t rows, uint64_t* bits, uint8_t* values) noexcept { \
        for (size_t word = 0; word < 2 * rows; ++word) {                                                      \
            uint64_t whole = 0;                                                                               \
            for (size_t lane = 0; lane < 64; lane += Lanes::LANES, source += 64) {                            \
                const __m512i x = _mm512_loadu_si512(source);                                                 \
                const uint64_t mask = Lanes::nonzeros(x);                                                     \
                _mm512_storeu_si512(values, Lanes::compress(mask, x));                                        \
                values += static_cast<size_t>(_mm_popcnt_u64(mask)) * (64 / Lanes::LANES);                    \
                whole |= mask << lane;                                                                        \
            }                                                                                                 \
            bits[word] = whole;                                                                               \
        }                                                                                                     \
    }                                                                                                         \
    template <typename Lanes>                                                                                 \
    TARGET void PREFIX##_unpack(const uint64_t* bits, size_t rows, const uint8_t* values,                     \
                                uint8_t* destination) noexcept {                                              \
        for (size_t word = 0; word < 2 * rows; ++word) {                                                      \
            for (size_t lane = 0; lane < 64; lane += Lanes::LANES, destination += 64) {                       \
                const uint64_t mask = (bits[word] >> lane) & ((uint64_t{1} << Lanes::LANES) - 1);             \
                _mm512_storeu_si512(destination, Lanes::expand(mask, _mm512_loadu_si512(values)));            \
                values += static_cast<size_t>(_mm_popcnt_u64(mask)) * (64 / Lanes::LANES);                    \
            }                                                                                                 \
        }                                                                                                     \
    }

FASTIO_CSR_AVX512(FASTIO_AVX512F, avx512f)
FASTIO_CSR_AVX512(FASTIO_VBMI2, vbmi2)

#undef FASTIO_CSR_AVX512

}  // namespace fastio::detail
