// CRC-32 as in zlib, gzip and zip files: IEEE polynomial, reflected (0xEDB88320), initial value and final xor ~0.
//
// Why our own: a transfer copies each byte once between a tensor and an I/O buffer, and `crc32_copy` computes the
// checksum on that same pass, in registers, inside the native pipeline and without the GIL. The fast libraries
// (isal, zlib-ng) do not fuse the copy, and as Python packages they export no C entry to call from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

// The CRC-32 of `nbytes` at `data`, continued from `value` (0 to begin), as zlib.crc32(data, value).
uint32_t crc32(uint32_t value, const void* data, size_t nbytes) noexcept;

// Copies `nbytes` from `source` to `destination` (which must not overlap) and returns the CRC-32 of the bytes written.
// Each source byte is loaded once, so the result matches the copy even while another thread changes the source.
// Ordinary stores: the destination is about to be handed to pwrite and should still be in cache then.
uint32_t crc32_copy(uint32_t value, void* destination, const void* source, size_t nbytes) noexcept;

// The CRC-32 of two runs of bytes, one after the other, from the CRC-32 of each and the length of the second.
uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_nbytes) noexcept;

// What this processor runs: "avx512-vpclmulqdq", "pclmulqdq", "armv8-crc" or "slice-by-8".
const char* crc32_kernel() noexcept;

namespace detail {

// One implementation. Both functions map register state to register state: without the initial and final inversion.
struct Crc32Kernel {
    const char* name;
    uint32_t (*update)(uint32_t state, const uint8_t* source, size_t nbytes) noexcept;
    uint32_t (*copy)(uint32_t state, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept;
};

// The implementations that this processor can run, the fastest first. For the native tests, which compare them all.
std::vector<Crc32Kernel> crc32_kernels();

}  // namespace detail
}  // namespace fastio
