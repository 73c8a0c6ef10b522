// Lossless compression of bfloat16 by its exponents, of which a tensor uses few.
//
// The elements are divided into blocks of 256, the last one padded with zeros. A block is:
//
//     least     1 byte                     the least exponent that is not 0; 1 if all are
//     width     1 byte                     bits of a code: 4, or 8 if the exponents span more than 15
//     rest      256 bytes                  sign (bit 7) and mantissa of each element
//     codes     32 x width bytes           0 for an exponent of 0, else the exponent - least + 1;
//                                          with 4 bits, byte i holds elements i and i + 128
//
// A block of 4-bit codes has 386 bytes instead of 512. There is no header: the reader knows the number of elements.
#pragma once

#include <cstdint>

namespace fastio {

// Returns the size of the payload of bfloat16 elements in bytes.
uint64_t exponents_nbytes(const void* source, uint64_t elements);

// Fills `payload`, whose size must be exponents_nbytes(). Throws Refused if `source` has changed since then.
void exponents_encode(const void* source, uint64_t elements, void* payload, uint64_t nbytes);

// Fills `destination`. Throws Refused, naming the block, for a payload whose blocks do not have that size. It never
// reads outside the payload or writes outside the destination, even while another thread changes the payload.
void exponents_decode(const void* payload, uint64_t nbytes, void* destination, uint64_t elements);

}  // namespace fastio
