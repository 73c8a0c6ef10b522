// What torch asks a backend for: allocators of device and pinned memory, random numbers, the current device.

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/version.h>

#include "backend/generators.hpp"
#include "execution/streams.hpp"
#include "memory/allocator.hpp"
#include "memory/host_memory.hpp"

#define SIMULATED_TORCH (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

namespace simulated {

namespace {

c10::Device torch_device(int device) { return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)}; }

void free_device(void* memory) { free_memory(reinterpret_cast<uintptr_t>(memory)); }

#if SIMULATED_TORCH >= 209
using AllocatorBase = c10::DeviceAllocator;
#else
using AllocatorBase = c10::Allocator;
#endif

struct DeviceMemoryAllocator final : AllocatorBase {
    c10::DataPtr allocate(size_t nbytes) override {
        const int device = current_device();
        auto* memory = reinterpret_cast<void*>(simulated::allocate(device, nbytes));
        return {memory, memory, &free_device, torch_device(device)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &free_device; }

    void copy_data(void*, const void*, size_t) const override {
        TORCH_CHECK(false, "the host cannot copy device memory; copy a tensor");
    }

#if SIMULATED_TORCH >= 209
    bool initialized() override { return true; }

    void emptyCache(c10::MempoolId_t = {0, 0}) override {
        for (int device = 0; device < kDevices; ++device) empty_cache(device);
    }

    void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
        record_stream(reinterpret_cast<uintptr_t>(data.get()), get_stream(stream.device_index(), stream.id()));
    }

    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
        Lock lock(machine().mutex);
        const MemoryCounters& counters = memory_counters(device);
        c10::CachingDeviceAllocator::DeviceStats stats;
        stats.allocated_bytes[0].current = static_cast<int64_t>(counters.allocated);
        stats.allocated_bytes[0].peak = static_cast<int64_t>(counters.peak);
        stats.reserved_bytes[0].current = static_cast<int64_t>(counters.reserved);
        stats.reserved_bytes[0].peak = static_cast<int64_t>(counters.peak_reserved);
        return stats;
    }

    void resetAccumulatedStats(c10::DeviceIndex) override {}

    void resetPeakStats(c10::DeviceIndex device) override {
        Lock lock(machine().mutex);
        MemoryCounters& counters = memory_counters(device);
        counters.peak = counters.allocated;
        counters.peak_reserved = counters.reserved;
    }

    // Virtual since torch 2.10.
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
        Lock lock(machine().mutex);
        const size_t limit = machine().settings.devices.at(device).memory_limit;
        return {limit - std::min(limit, memory_counters(device).reserved), limit};
    }
#endif
};

struct PinnedAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t nbytes) override {
        void* memory = allocate_pinned(nbytes);
        return {memory, memory, &free_pinned, c10::Device(c10::DeviceType::CPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }

    void copy_data(void* destination, const void* source, size_t nbytes) const override {
        default_copy_data(destination, source, nbytes);
    }
};

DeviceMemoryAllocator device_allocator;
PinnedAllocator pinned_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &device_allocator)

struct Hooks final : at::PrivateUse1HooksInterface {
    // The first two are virtual since torch 2.7.
    bool isBuilt() const { return true; }
    bool isAvailable() const { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return kDevices; }
    c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
    void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }

    c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
        const c10::DeviceIndex previous = getCurrentDevice();
        if (device >= 0) set_current_device(device);
        return previous;
    }

    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
    bool isPinnedPtr(const void* data) const override { return is_registered(reinterpret_cast<uintptr_t>(data)); }
    c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }

    c10::Device getDeviceFromPtr(void* data) const override {
        const int device = device_of(reinterpret_cast<uintptr_t>(data));
        return torch_device(device < 0 ? current_device() : device);
    }

    const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
        return default_generator(device < 0 ? current_device() : device);
    }

    at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }

    void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
        resize_storage(storage, nbytes);
    }
};

const bool registered = [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
}();

}  // namespace

}  // namespace simulated
