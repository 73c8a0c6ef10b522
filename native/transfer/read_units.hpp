// Divides a read through the page cache among threads.
#pragma once

#include <cstdint>
#include <vector>

#include "transfer/direct.hpp"
#include "transfer/extents.hpp"

namespace fastio {

// A range of the file that one thread reads.
struct ReadUnit {
    uint64_t begin;
    uint64_t end;
};

// The size of units for `threads` that read `nbytes`: `block`, or, of memory that was `used` before, so much less that
// the threads have equal shares. Other memory is faulted in by units, which are therefore whole huge pages.
uint64_t unit_size(uint64_t nbytes, unsigned threads, uint64_t block, bool used);

// Cuts a span where the file has a multiple of `block`.
std::vector<ReadUnit> units_of_span(const Span& span, uint64_t block);

// Cuts extents into units of at most `block` bytes of memory. A gap between two units belongs to none. Where extents
// lie one behind the other in memory, a unit ends with its huge page: two threads that fault in the same one would both
// clear it, one of them in vain. Reads of packed columns took twice as long.
std::vector<ReadUnit> units_of_extents(const Extents& extents, uint64_t block);

}  // namespace fastio
