#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Storage.h>

namespace simulated {

const at::Generator& default_generator(int device);

/// Gives a storage on the device memory of another size; the bytes that both have are copied.
void resize_storage(const c10::Storage& storage, size_t nbytes);

}  // namespace simulated
