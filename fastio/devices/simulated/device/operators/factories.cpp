// Operators that make tensors or change what a tensor's memory is: empty, views, resize_, set_.

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "backend/generators.hpp"
#include "backend/tensors.hpp"
#include "execution/copies.hpp"
#include "execution/streams.hpp"
#include "memory/allocator.hpp"

namespace simulated {

void resize_storage(const c10::Storage& storage, size_t nbytes) {
    c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "the storage cannot be resized");
    const c10::DeviceGuard guard(impl->device());
    c10::DataPtr memory = c10::GetAllocator(kDeviceType)->allocate(nbytes);
    if (const size_t kept = std::min(nbytes, impl->nbytes()))
        copy_bytes(impl->device().index(), memory.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(memory));
    impl->set_nbytes(nbytes);
}

namespace {

using Dtype = std::optional<c10::ScalarType>;
using Layout = std::optional<c10::Layout>;
using Device = std::optional<c10::Device>;

int index_of(Device device) { return device && device->has_index() ? device->index() : current_device(); }

void check_options(Layout layout, std::optional<bool> pin_memory) {
    TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "the simulated accelerator has strided tensors only");
    TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "only tensors on the CPU can be pinned");
}

at::Tensor empty(c10::IntArrayRef sizes, Dtype dtype, Layout layout, Device device, std::optional<bool> pin_memory,
                 std::optional<c10::MemoryFormat> format) {
    check_options(layout, pin_memory);
    const c10::DeviceGuard guard({kDeviceType, static_cast<c10::DeviceIndex>(index_of(device))});
    return at::detail::empty_generic(sizes, c10::GetAllocator(kDeviceType),
                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype),
                                     format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, Dtype dtype, Layout layout, Device device,
                         std::optional<bool> pin_memory) {
    check_options(layout, pin_memory);
    return empty_on(index_of(device), sizes, strides, c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
    c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
    impl->set_sizes_contiguous(sizes);
    const auto needed = static_cast<size_t>((impl->storage_offset() + impl->numel()) * impl->itemsize());
    if (impl->numel() > 0 && needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
    if (format && *format != c10::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
    return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef sizes,
                        c10::IntArrayRef strides) {
    c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(std::move(source));
    std::vector<int64_t> contiguous(sizes.size(), 1);
    for (int64_t each = static_cast<int64_t>(sizes.size()) - 2; each >= 0; --each)
        contiguous[each] = contiguous[each + 1] * std::max<int64_t>(sizes[each + 1], 1);
    impl->set_sizes_and_strides(sizes, strides.empty() ? c10::IntArrayRef(contiguous) : strides, offset);
    const int64_t end = offset + (impl->numel() ? 1 : 0);
    int64_t needed = end;
    for (size_t each = 0; each < sizes.size() && impl->numel(); ++each)
        needed += (sizes[each] - 1) * impl->strides()[each];
    needed *= static_cast<int64_t>(impl->itemsize());
    if (static_cast<size_t>(needed) > self.storage().nbytes()) resize_storage(self.storage(), needed);
    return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
    const auto elements = static_cast<int64_t>(source.nbytes() / self.element_size());
    return set_storage(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
    return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
    return set_storage(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::GetAllocator(kDeviceType), true), 0,
                       {0}, {});
}

void record_tensor(at::Tensor& self, c10::Stream stream) {
    record_stream(reinterpret_cast<uintptr_t>(self.storage().data()), get_stream(stream.device_index(), stream.id()));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
    library.impl("empty.memory_format", empty);
    library.impl("empty_strided", empty_strided);
    library.impl("resize_", resize);
    library.impl("set_", set_nothing);
    library.impl("set_.source_Storage", set_whole_storage);
    library.impl("set_.source_Storage_storage_offset", set_storage);
    library.impl("set_.source_Tensor", set_tensor);
    library.impl("record_stream", record_tensor);
}

}  // namespace

}  // namespace simulated
