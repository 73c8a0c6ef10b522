// NH, the universal hash of UMAC: Black, Halevi, Krawczyk, Krovetz and Rogaway, "UMAC: Fast and Secure Message
// Authentication" (CRYPTO '99), section 4. It works on 32-bit words in four passes, each with the key shifted by two
// more words (Toeplitz). For a random key, two different messages of the same length have the same digest with a
// probability of at most 2^-128.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

constexpr size_t kNhStride = 64;        // a message's length in bytes is a multiple of this
constexpr size_t kNhExtraKeyWords = 6;  // the key has so many words more than the message

// One sum for each pass.
using NhDigest = std::array<uint64_t, 4>;

// Returns the digest of `nbytes`, by the fastest kernel for this processor.
NhDigest nh_hash(const uint32_t* key, const uint8_t* data, size_t nbytes) noexcept;

namespace detail {

struct NhKernel {
    const char* name;
    NhDigest (*digest)(const uint32_t* key, const uint8_t* data, size_t nbytes) noexcept;
};

// Returns the kernels that this processor can run, the fastest first. The native tests compare them all.
std::vector<NhKernel> nh_kernels();

}  // namespace detail
}  // namespace fastio
