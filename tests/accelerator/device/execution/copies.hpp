#pragma once

#include <cstddef>

namespace simulated {

/// Queues a copy within a device's memory on its current stream.
void copy_bytes(int device, void* destination, const void* source, size_t nbytes);

}  // namespace simulated
