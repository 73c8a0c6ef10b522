// Devices, streams and events as torch calls them: torch.Stream, torch.Event, torch.accelerator, autograd's threads.

#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "execution/streams.hpp"
#include "memory/allocator.hpp"

namespace simulated {

namespace {

struct Event {
    std::shared_ptr<Recording> recording;
    bool has_timing;
};

c10::Stream to_torch(int device, int64_t id) {
    const c10::Device torch_device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
    return c10::Stream(c10::Stream::UNSAFE, torch_device, id);
}

c10::Stream to_torch(const Stream& stream) { return to_torch(stream.device, stream.id); }

Stream& from_torch(const c10::Stream& stream) { return get_stream(stream.device_index(), stream.id()); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
    static constexpr c10::DeviceType static_type = c10::DeviceType::PrivateUse1;

    Guard() = default;
    explicit Guard(c10::DeviceType) {}

    c10::DeviceType type() const override { return static_type; }
    c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
    c10::Device getDevice() const override { return {static_type, static_cast<c10::DeviceIndex>(current_device())}; }

    c10::Device exchangeDevice(c10::Device device) const override {
        const c10::Device previous = getDevice();
        setDevice(device);
        return previous;
    }

    void setDevice(c10::Device device) const override {
        TORCH_CHECK(device.index() < kDevices, "there is no device ", device, ": there are ", kDevices);
        uncheckedSetDevice(device);
    }

    void uncheckedSetDevice(c10::Device device) const noexcept override {
        if (device.index() >= 0) set_current_device(device.index());
    }

    c10::Stream getStream(c10::Device device) const noexcept override {
        const int index = device.has_index() ? device.index() : current_device();
        return to_torch(index, current_stream_id(index));
    }

    c10::Stream getDefaultStream(c10::Device device) const override { return to_torch(get_stream(device.index(), 0)); }

    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
        return to_torch(next_pool_stream(device.has_index() ? device.index() : current_device()));
    }

    c10::Stream getNewStream(c10::Device device, int) const override { return getStreamFromGlobalPool(device, false); }

    c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
        const c10::Stream previous = getStream(stream.device());
        set_current_stream(stream.device_index(), stream.id());
        return previous;
    }

    bool queryStream(const c10::Stream& stream) const override {
        Stream& queried = from_torch(stream);
        Lock lock(machine().mutex);
        check("Stream.query");
        return simulated::has_ended(lock, queried);
    }

    void synchronizeStream(const c10::Stream& stream) const override {
        Stream& awaited = from_torch(stream);
        Lock lock(machine().mutex);
        wait_for_stream(lock, awaited, "Stream.synchronize");
        check("Stream.synchronize");
    }

    // An override since torch 2.7.
    void synchronizeDevice(const c10::DeviceIndex device) const override {
        Lock lock(machine().mutex);
        wait_for_device(lock, device < 0 ? current_device() : device, "synchronize");
        check("synchronize");
    }

    void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
                const c10::EventFlag flag) const override {
        if (!*event) *event = new Event{nullptr, flag == c10::EventFlag::BACKEND_DEFAULT};
        static_cast<Event*>(*event)->recording = simulated::record(from_torch(stream));
    }

    void block(void* event, const c10::Stream& stream) const override {
        if (event) wait_in_stream(from_torch(stream), static_cast<Event*>(event)->recording);
    }

    bool queryEvent(void* event) const override { return !event || has_ended(static_cast<Event*>(event)->recording); }

    void synchronizeEvent(void* event) const override {
        if (event) wait_for_recording(static_cast<Event*>(event)->recording);
    }

    void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
        delete static_cast<Event*>(event);
    }

    double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
        const auto* begin = static_cast<Event*>(first);
        const auto* end = static_cast<Event*>(second);
        TORCH_CHECK(begin && end && begin->has_timing && end->has_timing,
                    "elapsed_time: both events must be made with enable_timing=True and be recorded");
        TORCH_CHECK(has_ended(begin->recording) && has_ended(end->recording),
                    "elapsed_time: both events must have ended; call synchronize() first");
        return (end->recording->time - begin->recording->time) * 1e3;
    }

    void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
        record_stream(reinterpret_cast<uintptr_t>(data.get()), from_torch(stream));
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

}  // namespace simulated
