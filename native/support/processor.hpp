// Finds the instructions that the processor has and the system allows. __builtin_cpu_supports would do, but where zig
// is the compiler it always answers no.
#pragma once

#if defined(__x86_64__)

#include <cpuid.h>

#include <cstdint>

namespace fastio {

struct Processor {
    bool sse41, pclmul, popcnt, avx2, vpclmulqdq, avx512f, avx512bw, avx512vbmi2;
};

namespace detail {

// From cpuid's leaves 1 and 7, and XCR0: the registers that the system saves when it switches between threads.
inline Processor decode_processor(uint32_t ecx1, uint32_t ebx7, uint32_t ecx7, uint64_t xcr0) noexcept {
    constexpr uint64_t YMM = 0x6, ZMM = 0xE6;  // the bits of all registers that AVX uses, and that AVX-512 uses
    const auto bit = [](uint32_t word, unsigned at) { return (word >> at & 1u) != 0; };
    const bool ymm = (xcr0 & YMM) == YMM, zmm = (xcr0 & ZMM) == ZMM;
    return {bit(ecx1, 19),        bit(ecx1, 1),         bit(ecx1, 23),        ymm && bit(ebx7, 5),
            ymm && bit(ecx7, 10), zmm && bit(ebx7, 16), zmm && bit(ebx7, 30), zmm && bit(ecx7, 6)};
}

inline Processor ask_processor() noexcept {
    uint32_t eax = 0, ebx = 0, ecx1 = 0, edx = 0, ebx7 = 0, ecx7 = 0, low = 0, high = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx1, &edx) == 0) return {};
    __get_cpuid_count(7, 0, &eax, &ebx7, &ecx7, &edx);  // leaves the zeros on processors without this leaf
    // xgetbv exists only where the system has switched it on (bit 27, OSXSAVE).
    if ((ecx1 >> 27 & 1u) != 0) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return decode_processor(ecx1, ebx7, ecx7, static_cast<uint64_t>(high) << 32 | low);
}

}  // namespace detail

inline const Processor& processor() noexcept {
    static const Processor found = detail::ask_processor();
    return found;
}

}  // namespace fastio

#endif
