// CSR-128 for any processor. Included by csr_kernels.cpp only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastio::detail {

// Always inlined, so that it can use the popcount instruction of its caller's target.
__attribute__((always_inline)) inline uint64_t tally_rows(const uint64_t* bits, size_t rows, uint64_t first,
                                                          uint32_t* pointers) noexcept {
    for (size_t row = 0; row < rows; ++row) {
        pointers[row] = static_cast<uint32_t>(first);
        first += static_cast<uint64_t>(__builtin_popcountll(bits[2 * row]) + __builtin_popcountll(bits[2 * row + 1]));
    }
    return first;
}

inline uint64_t scalar_tally(const uint64_t* bits, size_t rows, uint64_t first, uint32_t* pointers) noexcept {
    return tally_rows(bits, rows, first, pointers);
}

template <typename Element>
Element load(const uint8_t* address) noexcept {
    Element element;
    std::memcpy(&element, address, sizeof(Element));
    return element;
}

template <typename Element>
uint64_t scalar_count(const uint8_t* source, size_t rows) noexcept {
    uint64_t nonzeros = 0;
    for (size_t i = 0; i < 128 * rows; ++i) nonzeros += load<Element>(source + i * sizeof(Element)) != 0;
    return nonzeros;
}

// Branch-free: it writes every element and advances only past non-zeros.
template <typename Element>
void scalar_pack(const uint8_t* source, size_t rows, uint64_t* bits, uint8_t* values) noexcept {
    for (size_t word = 0; word < 2 * rows; ++word) {
        uint64_t mask = 0;
        for (size_t i = 0; i < 64; ++i, source += sizeof(Element)) {
            const Element element = load<Element>(source);
            const uint64_t kept = element != 0;
            std::memcpy(values, &element, sizeof(Element));
            values += kept * sizeof(Element);
            mask |= kept << i;
        }
        bits[word] = mask;
    }
}

template <typename Element>
void scalar_unpack(const uint64_t* bits, size_t rows, const uint8_t* values, uint8_t* destination) noexcept {
    for (size_t word = 0; word < 2 * rows; ++word) {
        const uint64_t mask = bits[word];
        for (size_t i = 0; i < 64; ++i, destination += sizeof(Element)) {
            const uint64_t kept = (mask >> i) & 1u;
            const Element element = static_cast<Element>(load<Element>(values) & (Element{0} - Element(kept)));
            std::memcpy(destination, &element, sizeof(Element));
            values += kept * sizeof(Element);
        }
    }
}

}  // namespace fastio::detail
