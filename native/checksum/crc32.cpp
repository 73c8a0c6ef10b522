#include "checksum/crc32.hpp"

#include <algorithm>
#include <cstring>

#include "checksum/crc32_polynomial.hpp"

#if defined(__x86_64__)
#include "checksum/crc32_x86.hpp"
#include "support/processor.hpp"
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "checksum/crc32_arm.hpp"
#endif

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the tables and registers take bytes in little-endian order");

namespace fastio {
namespace detail {

uint32_t slice_update(uint32_t state, const uint8_t* source, size_t nbytes) noexcept {
    for (; nbytes >= 8; nbytes -= 8, source += 8) {
        uint64_t word;
        std::memcpy(&word, source, 8);
        word ^= state;
        state = 0;
        for (size_t i = 0; i < 8; ++i) state ^= SLICES[7 - i][(word >> (8 * i)) & 0xFFu];
    }
    for (; nbytes > 0; --nbytes, ++source) state = (state >> 8) ^ SLICES[0][(state ^ *source) & 0xFFu];
    return state;
}

namespace {

using Update = uint32_t (*)(uint32_t, const uint8_t*, size_t) noexcept;

// Copies pieces that fit in the first-level cache and checksums each copy, not the source, which may change.
template <Update update>
uint32_t copy_then_update(uint32_t state, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept {
    constexpr size_t PIECE = 12288;
    for (size_t at = 0; at < nbytes; at += PIECE) {
        const size_t piece = std::min(PIECE, nbytes - at);
        std::memcpy(destination + at, source + at, piece);
        state = update(state, destination + at, piece);
    }
    return state;
}

#if defined(__x86_64__)

template <Copied copied>
uint32_t sse(uint32_t state, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept {
    if (nbytes >= 64) return fold_sse<copied>(state, destination, source, nbytes);
    return copied == Copied::kNot ? slice_update(state, source, nbytes)
                                  : copy_then_update<slice_update>(state, destination, source, nbytes);
}

template <Copied copied>
uint32_t avx2(uint32_t state, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept {
    return nbytes < 128 ? sse<of_rest(copied)>(state, destination, source, nbytes)
                        : fold_avx2<copied>(state, destination, source, nbytes);
}

template <Copied copied>
uint32_t avx512(uint32_t state, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept {
    return nbytes < 256 ? sse<of_rest(copied)>(state, destination, source, nbytes)
                        : fold_avx512<copied>(state, destination, source, nbytes);
}

using Kernel = uint32_t (*)(uint32_t, uint8_t*, const uint8_t*, size_t) noexcept;

template <Kernel update>
uint32_t only_update(uint32_t state, const uint8_t* source, size_t nbytes) noexcept {
    return update(state, nullptr, source, nbytes);
}

// Aligns the destination to a cache line first.
template <Kernel copy, Kernel stream>
uint32_t aligned_stream(uint32_t state, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept {
    constexpr size_t LINE = 64;
    const size_t head = std::min((LINE - reinterpret_cast<uintptr_t>(destination) % LINE) % LINE, nbytes);
    state = copy(state, destination, source, head);
    state = stream(state, destination + head, source + head, nbytes - head);
    _mm_sfence();  // these stores are not ordered before later ones without it
    return state;
}

#define FASTIO_KERNEL(name, kernel)                                    \
    {name, only_update<kernel<Copied::kNot>>, kernel<Copied::kCached>, \
     aligned_stream<kernel<Copied::kCached>, kernel<Copied::kStreamed>>}

#endif

// Chosen on first use.
const Crc32Kernel& best() noexcept {
    static const Crc32Kernel kernel = crc32_kernels().front();
    return kernel;
}

}  // namespace

std::vector<Crc32Kernel> crc32_kernels() {
    std::vector<Crc32Kernel> kernels;
#if defined(__x86_64__)
    const Processor& has = processor();
    const bool pclmul = has.sse41 && has.pclmul;
    const bool wide = pclmul && has.vpclmulqdq;
    if (wide && has.avx512f) kernels.push_back(FASTIO_KERNEL("avx512-vpclmulqdq", avx512));
    if (wide && has.avx2) kernels.push_back(FASTIO_KERNEL("avx2-vpclmulqdq", avx2));
    if (pclmul) kernels.push_back(FASTIO_KERNEL("pclmulqdq", sse));
#elif defined(__aarch64__)
    if (getauxval(AT_HWCAP) & HWCAP_CRC32) {
        kernels.push_back({"armv8-crc", arm_update, copy_then_update<arm_update>, copy_then_update<arm_update>});
    }
#endif
    kernels.push_back({"slice-by-8", slice_update, copy_then_update<slice_update>, copy_then_update<slice_update>});
    return kernels;
}

}  // namespace detail

uint32_t crc32(uint32_t value, const void* data, size_t nbytes) noexcept {
    return ~detail::best().update(~value, static_cast<const uint8_t*>(data), nbytes);
}

uint32_t crc32_copy(uint32_t value, void* destination, const void* source, size_t nbytes) noexcept {
    return ~detail::best().copy(~value, static_cast<uint8_t*>(destination), static_cast<const uint8_t*>(source),
                                nbytes);
}

uint32_t crc32_streaming_copy(uint32_t value, void* destination, const void* source, size_t nbytes) noexcept {
    return ~detail::best().streaming_copy(~value, static_cast<uint8_t*>(destination),
                                          static_cast<const uint8_t*>(source), nbytes);
}

// Appending bytes multiplies the earlier polynomial by x^(8 * bytes). The inversions of the two values cancel out.
uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_nbytes) noexcept {
    const uint64_t exponent = second_nbytes % detail::CRC32_ORDER * 8 % detail::CRC32_ORDER;
    for (size_t k = 0; k < 4; ++k) {
        const size_t byte = (exponent >> (8 * k)) & 0xFFu;
        if (byte != 0) first = detail::multiply(first, detail::POWERS[k][byte]);
    }
    return first ^ second;
}

const char* crc32_kernel() noexcept { return detail::best().name; }

}  // namespace fastio
