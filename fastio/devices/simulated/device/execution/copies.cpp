// Copies between host and devices. As with CUDA, a copy is asynchronous if the caller said non_blocking and the host's
// memory is registered; one between the host's pageable memory and a device is over when the call returns.

#include "execution/copies.hpp"

#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "backend/tensors.hpp"
#include "execution/streams.hpp"
#include "memory/allocator.hpp"
#include "memory/host_memory.hpp"

namespace simulated {

namespace {

uintptr_t address_of(const at::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()->data());
}

void* to_pointer(uintptr_t address) {
    const int device = device_of(address);
    return reinterpret_cast<void*>(device < 0 ? address : machine().devices[device].arena.on_device(address));
}

bool is_bytewise(const at::Tensor& one, const at::Tensor& other) {
    if (one.scalar_type() != other.scalar_type() || one.sizes() != other.sizes() || one.is_neg() || one.is_conj())
        return false;
    // Dimensions of one element may have any strides, so contiguous tensors may differ in them.
    return (one.is_contiguous() && other.is_contiguous()) ||
           (one.strides() == other.strides() && one.is_non_overlapping_and_dense());
}

/// Queues a copy of bytes; without `is_async`, waits for it.
void transfer(Stream& stream, Engine engine, uintptr_t destination, uintptr_t source, size_t nbytes, bool is_async) {
    if (nbytes == 0) return;
    Work work;
    work.name = std::string("copy ") + kEngineNames[static_cast<int>(engine)];
    work.engine = engine;
    work.nbytes = static_cast<int64_t>(nbytes);
    work.run = [to = to_pointer(destination), from = to_pointer(source), nbytes] { std::memcpy(to, from, nbytes); };
    Lock lock(machine().mutex);
    std::vector<Range> ranges;
    for (const Range& range : {Range{source, nbytes, false}, Range{destination, nbytes, true}})
        if (device_of(range.begin) >= 0 || find_registration(range.begin)) ranges.push_back(range);
    issue(lock, stream, std::move(work), ranges);
    if (is_async) return;
    wait_for_stream(lock, stream, kEngineNames[static_cast<int>(engine)]);
    check(kEngineNames[static_cast<int>(engine)]);
}

/// A copy within one device, of whatever dtype and strides: a kernel.
void copy_on_device(const at::Tensor& source, const at::Tensor& destination) {
    Work work;
    work.name = "aten::copy_";
    work.engine = Engine::compute;
    work.nbytes = static_cast<int64_t>(destination.nbytes());
    at::Tensor from = on_device_thread(source), to = on_device_thread(destination);
    if (source.is_conj()) from = from.conj();
    if (source.is_neg()) from = from._neg_view();
    work.run = [from, to]() mutable { to.copy_(from); };
    std::vector<Range> ranges;
    add_ranges(ranges, source, false);
    add_ranges(ranges, destination, true);
    Stream& stream = current_stream(destination.device().index());
    Lock lock(machine().mutex);
    issue(lock, stream, std::move(work), ranges);
}

void copy_between_devices(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
    // As CUDA's: the copy is a work of the source's stream, and each stream waits for the other.
    Stream& from = current_stream(source.device().index());
    Stream& to = current_stream(destination.device().index());
    wait_in_stream(from, record(to));
    transfer(from, Engine::peer, address_of(destination), address_of(source), destination.nbytes(), true);
    wait_in_stream(to, record(from));
    if (non_blocking) return;
    Lock lock(machine().mutex);
    wait_for_stream(lock, from, "copy between devices");
    check("copy between devices");
}

void copy_to_device(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
    const bool is_async = non_blocking && is_registered(address_of(source));
    transfer(current_stream(destination.device().index()), Engine::to_device, address_of(destination),
             address_of(source), destination.nbytes(), is_async);
}

void copy_to_host(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
    const bool is_async = non_blocking && is_registered(address_of(destination));
    transfer(current_stream(source.device().index()), Engine::to_host, address_of(destination), address_of(source),
             source.nbytes(), is_async);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
    if (destination.numel() == 0) return destination;
    if (destination.is_conj()) return copy_from(self.conj(), destination.conj(), non_blocking);
    if (destination.is_neg()) return copy_from(self._neg_view(), destination._neg_view(), non_blocking);
    const at::Tensor source = self.expand_as(destination);
    const bool on_one_device = source.device() == destination.device();
    if (on_one_device) {
        const c10::DeviceGuard guard(destination.device());
        copy_on_device(source, destination);
        return destination;
    }
    if (!is_bytewise(source, destination)) {
        // What needs another dtype or layout is converted where it lies; a destination with gaps gets a second copy.
        at::Tensor dense = source.to(destination.scalar_type()).resolve_conj().resolve_neg().contiguous();
        if (destination.is_contiguous()) return copy_from(dense, destination, non_blocking);
        at::Tensor landed = at::empty(destination.sizes(), destination.options());
        copy_from(dense, landed, non_blocking && !destination.is_cpu());
        destination.copy_(landed);
        return destination;
    }
    const c10::DeviceGuard guard(source.is_cpu() ? destination.device() : source.device());
    if (source.is_cpu())
        copy_to_device(source, destination, non_blocking);
    else if (destination.is_cpu())
        copy_to_host(source, destination, non_blocking);
    else
        copy_between_devices(source, destination, non_blocking);
    return destination;
}

at::Scalar local_scalar(const at::Tensor& self) {
    at::Tensor value = at::empty({}, c10::TensorOptions(self.scalar_type()));
    copy_from(self.reshape({}), value, false);
    return at::_local_scalar_dense(value);
}

// A copy resolves lazy conjugation and negation itself: torch would resolve them by a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
    library.impl("_copy_from", copy_from);
    library.impl("_local_scalar_dense", local_scalar);
}

}  // namespace

void copy_bytes(int device, void* destination, const void* source, size_t nbytes) {
    transfer(current_stream(device), Engine::compute, reinterpret_cast<uintptr_t>(destination),
             reinterpret_cast<uintptr_t>(source), nbytes, true);
}

void start_copy(Stream& stream, Engine engine, void* destination, const void* source, size_t nbytes) {
    const auto to = reinterpret_cast<uintptr_t>(destination), from = reinterpret_cast<uintptr_t>(source);
    const uintptr_t host = engine == Engine::to_device ? from : to;
    TORCH_CHECK(is_registered(host), kEngineNames[static_cast<int>(engine)], ": the host's memory is not registered");
    transfer(stream, engine, to, from, nbytes, true);
}

}  // namespace simulated
