#include "backend/tensors.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>

#include "memory/allocator.hpp"

namespace simulated {

namespace {

constexpr int64_t kRuns = 64;

/// The dimensions of a tensor without those that continue the one before, innermost first: (size, stride in elements).
std::vector<std::pair<int64_t, int64_t>> merged_dimensions(const at::Tensor& tensor) {
    std::vector<std::pair<int64_t, int64_t>> dimensions;
    for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension)
        if (tensor.size(dimension) != 1 && tensor.stride(dimension) != 0)
            dimensions.emplace_back(tensor.size(dimension), tensor.stride(dimension));
    std::sort(dimensions.begin(), dimensions.end(), [](auto& one, auto& other) { return one.second < other.second; });
    std::vector<std::pair<int64_t, int64_t>> merged{{1, 1}};
    for (const auto& [size, stride] : dimensions) {
        if (stride == merged.back().first * merged.back().second)
            merged.back().first *= size;
        else
            merged.emplace_back(size, stride);
    }
    return merged;
}

}  // namespace

at::Tensor on_device_thread(const at::Tensor& tensor) {
    auto address = reinterpret_cast<uintptr_t>(tensor.numel() ? tensor.unsafeGetTensorImpl()->data() : nullptr);
    if (const int device = device_of(address); device >= 0)
        address = machine().devices[device].arena.on_device(address);
    return at::from_blob(reinterpret_cast<void*>(address), tensor.sizes(), tensor.strides(),
                         c10::TensorOptions(tensor.scalar_type()));
}

at::Tensor to_meta(const at::Tensor& tensor) {
    const auto elements = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
    const auto options = c10::TensorOptions(tensor.scalar_type()).device(c10::DeviceType::Meta);
    return at::empty({elements}, options).as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

void add_ranges(std::vector<Range>& ranges, const at::Tensor& tensor, bool write) {
    if (!tensor.defined() || tensor.numel() == 0) return;
    const auto begin = reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()->data());
    const auto item = static_cast<int64_t>(tensor.element_size());
    const auto dimensions = merged_dimensions(tensor);
    const int64_t run = dimensions[0].first * item;
    int64_t runs = 1, last = 0;
    for (size_t each = 1; each < dimensions.size(); ++each) {
        runs *= dimensions[each].first;
        last += (dimensions[each].first - 1) * dimensions[each].second * item;
    }
    if (runs == 1 || runs > kRuns) {
        ranges.push_back({begin, static_cast<size_t>(last + run), write});
        return;
    }
    for (int64_t number = 0; number < runs; ++number) {
        int64_t rest = number, offset = 0;
        for (size_t each = 1; each < dimensions.size(); ++each) {
            offset += rest % dimensions[each].first * dimensions[each].second * item;
            rest /= dimensions[each].first;
        }
        ranges.push_back({begin + offset, static_cast<size_t>(run), write});
    }
}

at::Tensor empty_on(int device, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
    const c10::DeviceGuard guard({kDeviceType, static_cast<c10::DeviceIndex>(device)});
    return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kDeviceType),
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

at::Tensor view_on(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset,
                   c10::ScalarType dtype) {
    auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                         base.key_set(), c10::scalarTypeToTypeMeta(dtype));
    view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    return view;
}

}  // namespace simulated
