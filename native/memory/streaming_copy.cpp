#include "memory/streaming_copy.hpp"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace fastio {

#ifdef __SSE2__

namespace {

constexpr size_t kLine = 64;
constexpr size_t kAhead = 8 * kLine;        // of what is read, to prefetch
constexpr size_t kLeastNbytes = 256 << 10;  // fewer fit the nearest caches

}  // namespace

void streaming_copy(void* target, const void* source, size_t nbytes) {
    if (nbytes < kLeastNbytes) {
        std::memcpy(target, source, nbytes);
        return;
    }
    auto* to = static_cast<char*>(target);
    const auto* from = static_cast<const char*>(source);
    const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
    std::memcpy(to, from, head);
    to += head, from += head, nbytes -= head;
    for (; nbytes >= kLine; to += kLine, from += kLine, nbytes -= kLine) {
        _mm_prefetch(from + kAhead, _MM_HINT_NTA);
        const auto* read = reinterpret_cast<const __m128i*>(from);
        auto* written = reinterpret_cast<__m128i*>(to);
        const __m128i parts[]{_mm_loadu_si128(read), _mm_loadu_si128(read + 1), _mm_loadu_si128(read + 2),
                              _mm_loadu_si128(read + 3)};
        for (int part = 0; part < 4; ++part) _mm_stream_si128(written + part, parts[part]);
    }
    std::memcpy(to, from, nbytes);
    _mm_sfence();  // these stores are not ordered before later ones without it
}

#else

void streaming_copy(void* target, const void* source, size_t nbytes) { std::memcpy(target, source, nbytes); }

#endif

}  // namespace fastio
