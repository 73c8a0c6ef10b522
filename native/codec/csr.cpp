#include "codec/csr.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "support/errors.hpp"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a payload is little-endian");

namespace fastio {

namespace {

constexpr size_t BATCH = 32;  // rows per batch, whose elements fit in the first-level cache

// The layout of a payload: the number of rows, and the offsets of the pointers and the values.
struct Geometry {
    uint64_t rows;
    uint64_t pointers;
    uint64_t values;

    Geometry(uint64_t elements, uint64_t itemsize)
        : rows((elements + CSR_COLUMNS - 1) / CSR_COLUMNS), pointers(rows * 16), values((rows * 20 + 7) / 8 * 8) {
        if (itemsize != 2 && itemsize != 4 && itemsize != 8) {
            throw Refused("CSR-128 packs elements of 2, 4 or 8 bytes, not " + std::to_string(itemsize));
        }
        if (elements > CSR_MAX_ELEMENTS) {
            throw Refused("CSR-128 packs at most 2^32 - 1 elements, not " + std::to_string(elements));
        }
    }
};

const CsrRows& rows_of(const CsrKernel& kernel, uint64_t itemsize) {
    return kernel.rows[itemsize == 2 ? 0 : itemsize == 4 ? 1 : 2];
}

// Scratch memory for rows: the last row padded with zeros, or values with the slack that a kernel needs.
struct Scratch {
    alignas(64) uint8_t bytes[BATCH * CSR_COLUMNS * 8 + CSR_SLACK];
};

// Returns the number of rows in the batch from `row` on: a full batch, the remaining full rows, or the partial row
// alone.
size_t batch_from(uint64_t row, uint64_t elements) {
    return static_cast<size_t>(std::min<uint64_t>(BATCH, std::max<uint64_t>(1, elements / CSR_COLUMNS - row)));
}

// Returns the number of elements in those rows.
size_t elements_of(uint64_t row, size_t rows, uint64_t elements) {
    return static_cast<size_t>(std::min<uint64_t>(rows * CSR_COLUMNS, elements - row * CSR_COLUMNS));
}

const uint8_t* padded(const uint8_t* source, size_t elements, uint64_t itemsize, Scratch& scratch) {
    if (elements % CSR_COLUMNS == 0) return source;
    std::memset(scratch.bytes, 0, CSR_COLUMNS * itemsize);
    std::memcpy(scratch.bytes, source, elements * itemsize);
    return scratch.bytes;
}

[[noreturn]] void throw_damaged(uint64_t row, const char* problem) {
    throw Refused("the CSR-128 payload is damaged at row " + std::to_string(row) + ": " + problem);
}

}  // namespace

uint64_t csr_count(const CsrKernel& kernel, const void* source, uint64_t elements, uint64_t itemsize) {
    const Geometry geometry(elements, itemsize);
    const auto* data = static_cast<const uint8_t*>(source);
    const uint64_t whole = elements / CSR_COLUMNS;
    const CsrRows& kernels = rows_of(kernel, itemsize);
    uint64_t nonzeros = kernels.count(data, static_cast<size_t>(whole));
    if (whole < geometry.rows) {
        Scratch last;
        const size_t left = static_cast<size_t>(elements % CSR_COLUMNS);
        nonzeros += kernels.count(padded(data + whole * CSR_COLUMNS * itemsize, left, itemsize, last), 1);
    }
    return nonzeros;
}

void csr_encode(const CsrKernel& kernel, const void* source, uint64_t elements, uint64_t itemsize, void* payload,
                uint64_t nbytes) {
    const Geometry geometry(elements, itemsize);
    const char* const changed = "the tensor changed while it was encoded: its number of non-zeros is not the same";
    if (nbytes < geometry.values) throw Refused(changed);
    const auto* data = static_cast<const uint8_t*>(source);
    auto* const out = static_cast<uint8_t*>(payload);
    uint8_t* values = out + geometry.values;
    uint64_t left = nbytes - geometry.values;
    uint64_t nonzeros = 0;
    Scratch last;
    Scratch tail;
    for (uint64_t row = 0; row < geometry.rows;) {
        const size_t rows = batch_from(row, elements);
        const size_t here = elements_of(row, rows, elements);
        uint64_t bits[2 * BATCH];
        uint32_t pointers[BATCH];
        const bool has_slack = left >= rows * CSR_COLUMNS * itemsize + CSR_SLACK;
        rows_of(kernel, itemsize).pack(padded(data, here, itemsize, last), rows, bits, has_slack ? values : tail.bytes);
        const uint64_t after = kernel.tally(bits, rows, nonzeros, pointers);
        const uint64_t packed = (after - nonzeros) * itemsize;
        if (packed > left) throw Refused(changed);
        if (!has_slack) std::memcpy(values, tail.bytes, packed);
        std::memcpy(out + row * 16, bits, rows * 16);
        std::memcpy(out + geometry.pointers + row * 4, pointers, rows * 4);
        values += packed;
        left -= packed;
        nonzeros = after;
        data += here * itemsize;
        row += rows;
    }
    if (left != 0) throw Refused(changed);
    for (uint64_t at = geometry.rows * 20; at < geometry.values; ++at) out[at] = 0;
}

void csr_decode(const CsrKernel& kernel, const void* payload, uint64_t nbytes, void* destination, uint64_t elements,
                uint64_t itemsize) {
    const Geometry geometry(elements, itemsize);
    if (nbytes < geometry.values) throw_damaged(geometry.rows, "it ends before the values");
    const auto* const in = static_cast<const uint8_t*>(payload);
    auto* out = static_cast<uint8_t*>(destination);
    const uint8_t* values = in + geometry.values;
    uint64_t left = nbytes - geometry.values;
    uint64_t nonzeros = 0;
    Scratch last;
    Scratch tail;
    for (uint64_t row = 0; row < geometry.rows;) {
        const size_t rows = batch_from(row, elements);
        const size_t here = elements_of(row, rows, elements);
        // Copy the bits, so that the checked ones are used even if another thread changes the payload.
        uint64_t bits[2 * BATCH];
        uint32_t pointers[BATCH];
        std::memcpy(bits, in + row * 16, rows * 16);
        const uint64_t after = kernel.tally(bits, rows, nonzeros, pointers);
        if (std::memcmp(in + geometry.pointers + row * 4, pointers, rows * 4) != 0) {
            throw_damaged(row, "its pointer is not the number of non-zeros before it");
        }
        const uint64_t packed = (after - nonzeros) * itemsize;
        if (packed > left) throw_damaged(row, "it has more non-zeros than there are values");
        const bool has_slack = left >= packed + CSR_SLACK;
        if (!has_slack) std::memcpy(tail.bytes, values, packed);
        const bool partial = here % CSR_COLUMNS != 0;
        rows_of(kernel, itemsize).unpack(bits, rows, has_slack ? values : tail.bytes, partial ? last.bytes : out);
        if (partial) {
            const uint64_t words[2] = {here < 64 ? bits[0] >> here : 0, here < 64 ? bits[1] : bits[1] >> (here - 64)};
            if ((words[0] | words[1]) != 0) throw_damaged(row, "it has non-zeros past the last element");
            std::memcpy(out, last.bytes, here * itemsize);
        }
        values += packed;
        left -= packed;
        nonzeros = after;
        out += here * itemsize;
        row += rows;
    }
    if (left != 0) throw_damaged(geometry.rows, "there are more values than non-zeros");
    for (uint64_t at = geometry.rows * 20; at < geometry.values; ++at) {
        if (in[at] != 0) throw_damaged(geometry.rows, "the padding before the values is not zero");
    }
}

uint64_t csr_nbytes(uint64_t elements, uint64_t itemsize, uint64_t nonzeros) {
    return Geometry(elements, itemsize).values + nonzeros * itemsize;
}

}  // namespace fastio
