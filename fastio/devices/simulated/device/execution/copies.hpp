#pragma once

#include <cstddef>

#include "execution/machine.hpp"

namespace simulated {

/// Queues a copy within a device's memory on its current stream.
void copy_bytes(int device, void* destination, const void* source, size_t nbytes);

/// Queues a copy between registered host memory and a device's memory. Raises if the host's memory is not registered.
void start_copy(Stream& stream, Engine engine, void* destination, const void* source, size_t nbytes);

}  // namespace simulated
