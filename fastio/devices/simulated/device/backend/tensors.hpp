#pragma once

#include <ATen/core/Tensor.h>

#include "execution/machine.hpp"

namespace simulated {

constexpr auto kDeviceType = c10::DeviceType::PrivateUse1;

/// A CPU tensor on the same bytes as `tensor` (on a device), for the device's threads. It keeps nothing alive.
at::Tensor on_device_thread(const at::Tensor& tensor);

/// A meta tensor of the same sizes, strides, offset and storage size.
at::Tensor to_meta(const at::Tensor& tensor);

/// Adds the bytes of a tensor on the device; of one with gaps, each run of bytes by itself if there are few.
void add_ranges(std::vector<Range>& ranges, const at::Tensor& tensor, bool write);

/// Uninitialised memory on the device.
at::Tensor empty_on(int device, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);

/// A tensor on the storage of `base`.
at::Tensor view_on(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset,
                   c10::ScalarType dtype);

}  // namespace simulated
