// CSR-128 with AVX2: a table maps the mask of a register's non-zeros to the shuffle that packs or spreads them.
// Included by csr_kernels.cpp only. (Lemire and others do the same for sorted integers: "SIMD compression and the
// intersection of sorted integers", 2016.)
#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "codec/csr_scalar.hpp"

#define FASTIO_AVX2 __attribute__((target("avx2,popcnt")))

namespace fastio::detail {

// For each mask over `lanes` elements of `parts` pieces each: the source piece for each place, or -1 (zero).
template <size_t lanes, size_t parts>
using Shuffles = std::array<std::array<int8_t, lanes * parts>, (size_t{1} << lanes)>;

template <size_t lanes, size_t parts>
constexpr Shuffles<lanes, parts> make_shuffles(bool packing) {
    Shuffles<lanes, parts> shuffles{};
    for (size_t mask = 0; mask < shuffles.size(); ++mask) {
        for (auto& piece : shuffles[mask]) piece = -1;
        size_t packed = 0;
        for (size_t lane = 0; lane < lanes; ++lane) {
            if (((mask >> lane) & 1u) == 0) continue;
            const size_t to = packing ? packed : lane;
            const size_t from = packing ? lane : packed;
            for (size_t part = 0; part < parts; ++part) {
                shuffles[mask][to * parts + part] = static_cast<int8_t>(from * parts + part);
            }
            ++packed;
        }
    }
    return shuffles;
}

template <size_t lanes, size_t parts>
inline constexpr Shuffles<lanes, parts> PACKING = make_shuffles<lanes, parts>(true);
template <size_t lanes, size_t parts>
inline constexpr Shuffles<lanes, parts> SPREADING = make_shuffles<lanes, parts>(false);

// A register of eight two-byte elements, shuffled by bytes.
struct Avx2x2 {
    using Register = __m128i;
    static constexpr size_t LANES = 8;
    static constexpr size_t ITEMSIZE = 2;
    FASTIO_AVX2 static Register load(const uint8_t* from) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }
    FASTIO_AVX2 static void store(uint8_t* to, Register x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x); }
    FASTIO_AVX2 static uint64_t zeros(Register x) {
        const __m128i equal = _mm_cmpeq_epi16(x, _mm_setzero_si128());
        return static_cast<uint64_t>(_mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())));
    }
    FASTIO_AVX2 static Register shuffle(Register x, const std::array<int8_t, 16>& pieces) {
        return _mm_shuffle_epi8(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(pieces.data())));
    }
    static constexpr const auto& packing = PACKING<8, 2>;
    static constexpr const auto& spreading = SPREADING<8, 2>;
};

// A register of 32 bytes, shuffled by its eight four-byte pieces.
struct Avx2Wide {
    using Register = __m256i;
    FASTIO_AVX2 static Register load(const uint8_t* from) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    }
    FASTIO_AVX2 static void store(uint8_t* to, Register x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
    FASTIO_AVX2 static Register shuffle(Register x, const std::array<int8_t, 8>& pieces) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pieces.data()));
        const __m256i wide = _mm256_cvtepi8_epi32(bytes);  // -1 stays negative, which means zero below
        return _mm256_andnot_si256(_mm256_srai_epi32(wide, 31), _mm256_permutevar8x32_epi32(x, wide));
    }
};

struct Avx2x4 : Avx2Wide {
    static constexpr size_t LANES = 8;
    static constexpr size_t ITEMSIZE = 4;
    FASTIO_AVX2 static uint64_t zeros(Register x) {
        const __m256i equal = _mm256_cmpeq_epi32(x, _mm256_setzero_si256());
        return static_cast<uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(equal)));
    }
    static constexpr const auto& packing = PACKING<8, 1>;
    static constexpr const auto& spreading = SPREADING<8, 1>;
};

struct Avx2x8 : Avx2Wide {
    static constexpr size_t LANES = 4;
    static constexpr size_t ITEMSIZE = 8;
    FASTIO_AVX2 static uint64_t zeros(Register x) {
        const __m256i equal = _mm256_cmpeq_epi64(x, _mm256_setzero_si256());
        return static_cast<uint64_t>(_mm256_movemask_pd(_mm256_castsi256_pd(equal)));
    }
    static constexpr const auto& packing = PACKING<4, 2>;
    static constexpr const auto& spreading = SPREADING<4, 2>;
};

template <typename Lanes>
inline constexpr uint64_t ALL = (uint64_t{1} << Lanes::LANES) - 1;

template <typename Lanes>
FASTIO_AVX2 uint64_t avx2_count(const uint8_t* source, size_t rows) noexcept {
    uint64_t zeros = 0;
    for (size_t i = 0; i < rows * 128; i += Lanes::LANES, source += Lanes::LANES * Lanes::ITEMSIZE) {
        zeros += static_cast<uint64_t>(_mm_popcnt_u64(Lanes::zeros(Lanes::load(source))));
    }
    return rows * 128 - zeros;
}

template <typename Lanes>
FASTIO_AVX2 void avx2_pack(const uint8_t* source, size_t rows, uint64_t* bits, uint8_t* values) noexcept {
    for (size_t word = 0; word < 2 * rows; ++word) {
        uint64_t whole = 0;
        for (size_t lane = 0; lane < 64; lane += Lanes::LANES, source += Lanes::LANES * Lanes::ITEMSIZE) {
            const typename Lanes::Register x = Lanes::load(source);
            const uint64_t mask = Lanes::zeros(x) ^ ALL<Lanes>;
            Lanes::store(values, Lanes::shuffle(x, Lanes::packing[mask]));
            values += static_cast<size_t>(_mm_popcnt_u64(mask)) * Lanes::ITEMSIZE;
            whole |= mask << lane;
        }
        bits[word] = whole;
    }
}

template <typename Lanes>
FASTIO_AVX2 void avx2_unpack(const uint64_t* bits, size_t rows, const uint8_t* values, uint8_t* destination) noexcept {
    for (size_t word = 0; word < 2 * rows; ++word) {
        for (size_t lane = 0; lane < 64; lane += Lanes::LANES, destination += Lanes::LANES * Lanes::ITEMSIZE) {
            const uint64_t mask = (bits[word] >> lane) & ALL<Lanes>;
            Lanes::store(destination, Lanes::shuffle(Lanes::load(values), Lanes::spreading[mask]));
            values += static_cast<size_t>(_mm_popcnt_u64(mask)) * Lanes::ITEMSIZE;
        }
    }
}

FASTIO_AVX2 inline uint64_t popcnt_tally(const uint64_t* bits, size_t rows, uint64_t first,
                                         uint32_t* pointers) noexcept {
    return tally_rows(bits, rows, first, pointers);
}

}  // namespace fastio::detail
