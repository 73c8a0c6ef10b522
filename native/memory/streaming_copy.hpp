// Copies memory that is not read again soon.
#pragma once

#include <cstddef>

namespace fastio {

// As memcpy; but a large copy leaves the caches alone, with stores past them. Memory then moves two thirds of the bytes
// (a store into the cache first reads what it replaces), which counts most where others use its bandwidth. Not for
// bytes that are read next: they would come from memory.
void streaming_copy(void* target, const void* source, size_t nbytes);

}  // namespace fastio
