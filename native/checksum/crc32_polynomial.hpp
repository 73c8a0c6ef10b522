// Arithmetic modulo the CRC-32 polynomial P over GF(2), and its tables, all computed at compile time.
//
// Polynomials are reflected, as the bytes of a file are: bit 31 of a 32-bit word is the coefficient of x^0, bit 0 that
// of x^31.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastio::detail {

inline constexpr uint32_t CRC32_POLYNOMIAL = 0xEDB88320u;  // P without its x^32
inline constexpr uint32_t CRC32_ONE = 0x80000000u;         // x^0

// a * x mod P.
constexpr uint32_t times_x(uint32_t a) { return (a >> 1) ^ (CRC32_POLYNOMIAL & (0u - (a & 1u))); }

// a * b mod P, without branches.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; --bit) {
        product ^= b & (0u - ((a >> bit) & 1u));
        b = times_x(b);
    }
    return product;
}

// x^exponent mod P, by repeated squaring.
constexpr uint32_t x_power(uint64_t exponent) {
    uint32_t result = CRC32_ONE;
    for (uint32_t square = times_x(CRC32_ONE); exponent != 0; exponent >>= 1, square = multiply(square, square)) {
        if (exponent & 1u) result = multiply(result, square);
    }
    return result;
}

// P is primitive, so the powers of x repeat after 2^32 - 1 and exponents may be reduced modulo that.
inline constexpr uint64_t CRC32_ORDER = 0xFFFFFFFFu;
static_assert(x_power(CRC32_ORDER) == CRC32_ONE);

// The multiplier that moves a 64-bit half of a block forward by `bits` in the message, for a carry-less multiplication
// of reflected operands (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// Intel 2009). The product of two reflected 64-bit words has 127 bits, so it lies one place too low in its 128-bit
// register. That multiplies it by x: hence `bits - 1`. The 32-bit remainder is the upper half of the 64-bit operand.
constexpr uint64_t fold_constant(uint64_t bits) { return uint64_t{x_power(bits - 1)} << 32; }

// Folding moves a block of 128 bits. Its lower half is earlier in the message, so it moves 64 bits further.
struct FoldPair {
    uint64_t low;
    uint64_t high;
};
constexpr FoldPair fold_pair(uint64_t bits) { return {fold_constant(bits + 64), fold_constant(bits)}; }

// SLICES[k][b] is the state of byte b after k more zero bytes (slicing-by-8: Kounavis and Berry, "A Systematic Approach
// to Building High Performance, Software-based, CRC Generators", 2005).
using Slices = std::array<std::array<uint32_t, 256>, 8>;
constexpr Slices make_slices() {
    Slices slices{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; ++bit) state = times_x(state);
        slices[0][byte] = state;
    }
    for (size_t k = 1; k < 8; ++k) {
        for (size_t byte = 0; byte < 256; ++byte) {
            const uint32_t before = slices[k - 1][byte];
            slices[k][byte] = (before >> 8) ^ slices[0][before & 0xFFu];
        }
    }
    return slices;
}
inline constexpr Slices SLICES = make_slices();

// POWERS[k][b] = x^(b * 256^k) mod P: any exponent below 2^32 is a product of four entries.
using Powers = std::array<std::array<uint32_t, 256>, 4>;
constexpr Powers make_powers() {
    Powers powers{};
    for (size_t k = 0; k < 4; ++k) {
        const uint32_t step = x_power(uint64_t{1} << (8 * k));
        powers[k][0] = CRC32_ONE;
        for (size_t b = 1; b < 256; ++b) powers[k][b] = multiply(powers[k][b - 1], step);
    }
    return powers;
}
inline constexpr Powers POWERS = make_powers();

}  // namespace fastio::detail
