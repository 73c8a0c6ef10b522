// CRC-32 with the ARMv8 instructions. Included by crc32.cpp only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "checksum/crc32_polynomial.hpp"

namespace fastio::detail {

// Uses assembly, because not all compilers declare __crc32d in <arm_acle.h> for a file built without +crc.
inline uint32_t arm_step(uint32_t state, const uint8_t* source) {
    uint64_t word;
    std::memcpy(&word, source, 8);
    asm(".arch_extension crc\n\tcrc32x %w0, %w0, %x1" : "+r"(state) : "r"(word));
    return state;
}

// Three parallel lanes hide the instruction's latency: 3 cycles, and one can start in each cycle. The lanes are then
// combined by moving the earlier ones past LANE bytes.
inline uint32_t arm_update(uint32_t state, const uint8_t* source, size_t nbytes) noexcept {
    constexpr size_t LANE = 4096;
    constexpr uint32_t past_lane = x_power(8 * LANE);
    for (; nbytes >= 3 * LANE; nbytes -= 3 * LANE, source += 3 * LANE) {
        uint32_t second = 0;
        uint32_t third = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            state = arm_step(state, source + i);
            second = arm_step(second, source + LANE + i);
            third = arm_step(third, source + 2 * LANE + i);
        }
        state = multiply(multiply(state, past_lane) ^ second, past_lane) ^ third;
    }
    for (; nbytes >= 8; nbytes -= 8, source += 8) state = arm_step(state, source);
    for (; nbytes > 0; --nbytes, ++source) state = (state >> 8) ^ SLICES[0][(state ^ *source) & 0xFFu];
    return state;
}

}  // namespace fastio::detail
