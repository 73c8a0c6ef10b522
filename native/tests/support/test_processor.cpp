// Compares what fastio finds out about the processor with what the compiler's run-time library finds out.

#include <cstdint>
#include <initializer_list>

#include "support/processor.hpp"
#include "tests/support/check.hpp"

#if defined(__x86_64__)

namespace {

using fastio::detail::decode_processor;

#define CHECK_SAME(field, name)                                                                                    \
    CHECK(fastio::processor().field == (__builtin_cpu_supports(name) != 0), "%s: fastio says %d, the compiler %d", \
          name, fastio::processor().field, !fastio::processor().field)

void agrees_with_the_compiler() {
    __builtin_cpu_init();
    CHECK_SAME(sse41, "sse4.1");
    CHECK_SAME(pclmul, "pclmul");
    CHECK_SAME(popcnt, "popcnt");
    CHECK_SAME(avx2, "avx2");
    CHECK_SAME(vpclmulqdq, "vpclmulqdq");
    CHECK_SAME(avx512f, "avx512f");
    CHECK_SAME(avx512bw, "avx512bw");
    CHECK_SAME(avx512vbmi2, "avx512vbmi2");
}

// A processor that has everything, under systems that save less and less of its registers.
void wants_the_system_to_save_the_registers() {
    const auto all = decode_processor(~0u, ~0u, ~0u, 0xE7);
    CHECK(all.avx2 && all.vpclmulqdq && all.avx512f && all.avx512bw && all.avx512vbmi2, "something is missing");
    for (uint64_t lost : {0x20, 0x40, 0x80}) {
        const auto ymm = decode_processor(~0u, ~0u, ~0u, 0xE7 & ~lost);
        CHECK(ymm.avx2 && ymm.vpclmulqdq, "XCR0 without bit %#x: AVX2 needs no zmm registers", unsigned(lost));
        CHECK(!ymm.avx512f && !ymm.avx512bw && !ymm.avx512vbmi2, "AVX-512, but XCR0 lacks bit %#x", unsigned(lost));
    }
    for (uint64_t lost : {0x2, 0x4}) {
        const auto xmm = decode_processor(~0u, ~0u, ~0u, 0xE7 & ~lost);
        CHECK(!xmm.avx2 && !xmm.vpclmulqdq && !xmm.avx512f, "AVX, but XCR0 lacks bit %#x", unsigned(lost));
        CHECK(xmm.sse41 && xmm.pclmul && xmm.popcnt, "XCR0 without bit %#x: SSE needs no ymm registers",
              unsigned(lost));
    }
    const auto none = decode_processor(0, 0, 0, 0xE7);
    CHECK(!none.sse41 && !none.pclmul && !none.popcnt && !none.avx2 && !none.vpclmulqdq && !none.avx512f &&
              !none.avx512bw && !none.avx512vbmi2,
          "an instruction that the processor lacks");
}

}  // namespace

int main() {
    agrees_with_the_compiler();
    wants_the_system_to_save_the_registers();
    return 0;
}

#else

int main() { return 0; }

#endif
