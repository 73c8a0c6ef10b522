// CRC-32 of zlib, gzip and zip files: IEEE polynomial, reflected (0xEDB88320), initial value and final xor ~0.
//
// Why not a library: a transfer copies each byte once between a tensor and an I/O buffer, and crc32_copy() computes the
// checksum in that pass, in registers and without the GIL. The fast libraries (isal, zlib-ng) do not fuse the copy, and
// as Python packages they export no C function to call from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

// Returns the CRC-32 of `nbytes` at `data`, continued from `value` (0 to begin), as zlib.crc32(data, value) does.
uint32_t crc32(uint32_t value, const void* data, size_t nbytes) noexcept;

// Copies `nbytes` from `source` to `destination` (which must not overlap) and returns the CRC-32 of the bytes written.
// Each source byte is loaded once, so the result matches the copy even while another thread changes the source. It uses
// ordinary stores, because pwrite reads the destination next and should find it in the cache.
uint32_t crc32_copy(uint32_t value, void* destination, const void* source, size_t nbytes) noexcept;

// As crc32_copy(), with stores past the caches: for much memory that no processor reads soon. Memory then moves two
// thirds of the bytes (a store into the cache first reads what it replaces): measured on an EPYC, 24 GB/s a core, where
// memcpy has 18.
uint32_t crc32_streaming_copy(uint32_t value, void* destination, const void* source, size_t nbytes) noexcept;

// Returns the CRC-32 of two runs of bytes joined, from the CRC-32 of each and the length of the second.
uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_nbytes) noexcept;

// Returns the name of the kernel in use: "avx512-vpclmulqdq", "avx2-vpclmulqdq", "pclmulqdq", "armv8-crc" or
// "slice-by-8".
const char* crc32_kernel() noexcept;

namespace detail {

// One implementation. The functions map register state to register state, without the initial and final inversion.
struct Crc32Kernel {
    const char* name;
    uint32_t (*update)(uint32_t state, const uint8_t* source, size_t nbytes) noexcept;
    uint32_t (*copy)(uint32_t state, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept;
    uint32_t (*streaming_copy)(uint32_t state, uint8_t* destination, const uint8_t* source, size_t nbytes) noexcept;
};

// Returns the implementations that this processor can run, the fastest first. The native tests compare them all.
std::vector<Crc32Kernel> crc32_kernels();

}  // namespace detail
}  // namespace fastio
