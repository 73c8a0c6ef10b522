// NH, the universal hash of UMAC: Black, Halevi, Krawczyk, Krovetz and Rogaway, "UMAC: Fast and Secure Message
// Authentication" (CRYPTO '99), section 4. Here over 32-bit words in four passes, the key of each two words further on
// than that of the one before (Toeplitz): for a random key, two messages of one length that differ, in whatever way,
// have the same digest with a probability of 2^-128 at most.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

constexpr size_t kNhStride = 64;        // messages are of so many bytes, or a multiple
constexpr size_t kNhExtraKeyWords = 6;  // words of the key beyond those of the message

// One sum for each pass.
using NhDigest = std::array<uint64_t, 4>;

// The digest of `nbytes`, by the fastest kernel that this processor runs.
NhDigest nh_hash(const uint32_t* key, const uint8_t* data, size_t nbytes) noexcept;

namespace detail {

struct NhKernel {
    const char* name;
    NhDigest (*digest)(const uint32_t* key, const uint8_t* data, size_t nbytes) noexcept;
};

// Those that this processor can run, the fastest first. For the native tests, which compare them all.
std::vector<NhKernel> nh_kernels();

}  // namespace detail
}  // namespace fastio
