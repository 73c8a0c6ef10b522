// Copies to and from CUDA devices, by the driver's library, which is loaded when it is needed first.
#pragma once

#include "device/device_copies.hpp"

namespace fastio {

// The copies of the driver in the shared library of that name. Throws Refused, with the reason, if there is none or it
// lacks a function. Whether there is a device shows when a stream is made. Nothing is loaded twice, or unloaded.
const DeviceCopies* cuda_copies(const char* library = "libcuda.so.1");

// Starts a copy on a stream that others made, such as one of torch's. The host's memory is pinned. Throws Refused.
void cuda_copy(void* stream, void* destination, const void* source, uint64_t nbytes, bool to_host);

}  // namespace fastio
