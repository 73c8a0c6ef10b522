// CSR-128 compression, which drops the zeros of a tensor (FlashNeuron, FAST 2021, section 3.3). It is lossless: an
// element with any bit set is kept, so -0.0, every NaN and both infinities are preserved.
//
// The flattened elements are divided into rows of 128, the last one padded with zeros. A payload is, little-endian:
//
//     bits      rows x 16 bytes            element i of the row is bit i % 8 of byte i / 8
//     pointers  rows x 4 bytes             the number of values before the row's: the running sum of popcounts
//     padding   0 or 4 bytes of zeros      aligns the values to 8 bytes
//     values    non-zeros x itemsize bytes
//
// The compression ratio of float32 with density d is 4 / (4 d + 20 / 128). The pointers are redundant: they let each
// row be unpacked separately (csr.cu uses a warp per row) and reveal damage. There is no header: the reader knows the
// number and size of the elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

inline constexpr uint64_t CSR_COLUMNS = 128;
inline constexpr uint64_t CSR_MAX_ELEMENTS = (uint64_t{1} << 32) - 1;  // the range of a pointer

// A kernel may read and write up to this many bytes past the values.
inline constexpr size_t CSR_SLACK = 64;

// Functions on whole rows of one itemsize. `bits` has two words per row; values need not be aligned.
struct CsrRows {
    uint64_t (*count)(const uint8_t* source, size_t rows) noexcept;
    void (*pack)(const uint8_t* source, size_t rows, uint64_t* bits, uint8_t* values) noexcept;
    void (*unpack)(const uint64_t* bits, size_t rows, const uint8_t* values, uint8_t* destination) noexcept;
};

// One implementation. `tally` writes the running sum before each row, from `first`, and returns the last one.
struct CsrKernel {
    const char* name;  // "avx512-vbmi2", "avx512f", "avx2" or "scalar"
    CsrRows rows[3];   // itemsizes 2, 4 and 8
    uint64_t (*tally)(const uint64_t* bits, size_t rows, uint64_t first, uint32_t* pointers) noexcept;
};

// Returns the implementations that this processor can run, the fastest first.
const std::vector<CsrKernel>& csr_kernels();

// Returns the size of a payload in bytes. All functions here throw Refused for an itemsize other than 2, 4 or 8 and for
// too many elements.
uint64_t csr_nbytes(uint64_t elements, uint64_t itemsize, uint64_t nonzeros);

// Returns the number of elements with any bit set.
uint64_t csr_count(const CsrKernel& kernel, const void* source, uint64_t elements, uint64_t itemsize);

// Fills `payload`, whose size must be csr_nbytes() of csr_count(). Throws Refused if `source` has changed since then.
void csr_encode(const CsrKernel& kernel, const void* source, uint64_t elements, uint64_t itemsize, void* payload,
                uint64_t nbytes);

// Fills `destination`. Throws Refused, naming the row, for a payload that csr_encode() did not write. It never reads
// outside the payload or writes outside the destination, even while another thread changes the payload.
void csr_decode(const CsrKernel& kernel, const void* payload, uint64_t nbytes, void* destination, uint64_t elements,
                uint64_t itemsize);

}  // namespace fastio
