// Memory that two sides see: device memory for the host (peer windows), and host memory for a device.

#include <ATen/ops/empty.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <map>

#include "backend/tensors.hpp"
#include "memory/allocator.hpp"
#include "memory/host_memory.hpp"

namespace simulated {

namespace {

std::map<int64_t, int64_t>& windows() {
    static auto& instance = *new std::map<int64_t, int64_t>;
    return instance;
}

/// Address and bytes of each open peer window.
std::vector<int64_t> list_windows() {
    Lock lock(machine().mutex);
    std::vector<int64_t> result;
    for (const auto& [address, nbytes] : windows()) {
        result.push_back(address);
        result.push_back(nbytes);
    }
    return result;
}

int64_t open_window(int64_t address, int64_t nbytes) {
    Lock lock(machine().mutex);
    check("peer_window");
    const int64_t page = sysconf(_SC_PAGESIZE);
    const Block* block = find_block(address);
    TORCH_CHECK(block && block->allocated && static_cast<uintptr_t>(address + nbytes) <= block->begin + block->nbytes,
                "peer_window: ", nbytes, " bytes at ", address, " are not memory of one tensor on a device");
    const int64_t begin = address / page * page;
    void* window = machine().devices[device_of(address)].arena.open_window(begin, address + nbytes - begin);
    TORCH_CHECK(window, "peer_window: mmap of ", nbytes, " bytes failed");
    const int64_t result = reinterpret_cast<int64_t>(window) + address - begin;
    windows()[result] = nbytes;
    return result;
}

void close_window(int64_t window) {
    Lock lock(machine().mutex);
    const auto found = windows().find(window);
    TORCH_CHECK(found != windows().end(), "close_peer_window: no window is open at ", window);
    const int64_t begin = window / sysconf(_SC_PAGESIZE) * sysconf(_SC_PAGESIZE);
    munmap(reinterpret_cast<void*>(begin), window + found->second - begin);
    windows().erase(found);
}

at::Tensor over(c10::DataPtr data, size_t nbytes, const at::Tensor& like) {
    c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, std::move(data), nullptr, false);
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    return view;
}

/// A tensor on the device whose memory is that of `host`, which must be registered. It keeps `host` alive.
at::Tensor host_view(const at::Tensor& host, int64_t device) {
    auto* memory = const_cast<void*>(host.storage().data());
    TORCH_CHECK(host.is_cpu() && is_registered(reinterpret_cast<uintptr_t>(memory)),
                "host_view: expected a CPU tensor in registered memory");
    c10::DataPtr data(
        memory, new at::Tensor(host), [](void* kept) { delete static_cast<at::Tensor*>(kept); },
        c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device)));
    return over(std::move(data), host.storage().nbytes(), host);
}

/// Device memory as bytes. The tensor that owns the memory must outlive it.
at::Tensor bytes_at(int64_t address, int64_t nbytes) {
    const int device = device_of(address);
    TORCH_CHECK(device >= 0, "bytes_at: no device has memory at ", address);
    c10::DataPtr data(reinterpret_cast<void*>(address),
                      c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device)));
    return over(std::move(data), nbytes, at::empty({nbytes}, c10::TensorOptions(at::kByte).device(c10::kMeta)));
}

TORCH_LIBRARY_FRAGMENT(simulated, library) {
    library.def("open_window", open_window);
    library.def("close_window", close_window);
    library.def("windows", list_windows);
    library.def("host_view", host_view);
    library.def("bytes_at", bytes_at);
}

}  // namespace

}  // namespace simulated
