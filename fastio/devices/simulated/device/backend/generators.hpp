#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Storage.h>

namespace simulated {

const at::Generator& default_generator(int device);

/// A generator for the device; -1: for the current one.
at::Generator new_generator(c10::DeviceIndex device);

/// Gives a storage on the device memory of another size; the bytes that both have are copied.
void resize_storage(const c10::Storage& storage, size_t nbytes);

}  // namespace simulated
