// The device's copies as a table of C functions, for native code without torch: fastio's
// native/device/device_copies.hpp.

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <string>

#include "execution/copies.hpp"
#include "execution/streams.hpp"

namespace simulated::native_copies {

namespace {

struct Event {
    std::shared_ptr<Recording> recording;
};

/// What a call raises, as text that is valid until the thread's next call, or nullptr.
template <typename Call>
const char* text_of_error(const Call& call) {
    thread_local std::string text;
    try {
        call();
        return nullptr;
    } catch (const c10::Error& error) {
        text = error.what_without_backtrace();
    } catch (const std::exception& error) {
        text = error.what();
    }
    return text.c_str();
}

Stream& stream_of(void* stream) { return *static_cast<Stream*>(stream); }

const char* make_stream(int device, void** stream) {
    return text_of_error([&] { *stream = &next_pool_stream(device); });
}

/// The pool keeps the stream.
void destroy_stream(void* stream) {
    text_of_error([&] {
        Lock lock(machine().mutex);
        wait_for_stream(lock, stream_of(stream), "destroy_stream");
    });
}

const char* make_event(void*, void** event) {
    *event = new Event;
    return nullptr;
}

void destroy_event(void*, void* event) { delete static_cast<Event*>(event); }

const char* to_device(void* stream, void* device_memory, const void* host, uint64_t nbytes) {
    return text_of_error([&] { start_copy(stream_of(stream), Engine::to_device, device_memory, host, nbytes); });
}

const char* to_host(void* stream, void* host, const void* device_memory, uint64_t nbytes) {
    return text_of_error([&] { start_copy(stream_of(stream), Engine::to_host, host, device_memory, nbytes); });
}

const char* record(void* stream, void* event) {
    return text_of_error([&] { static_cast<Event*>(event)->recording = simulated::record(stream_of(stream)); });
}

const char* wait(void*, void* event) {
    return text_of_error([&] { wait_for_recording(static_cast<Event*>(event)->recording); });
}

struct Table {
    const char* (*make_stream)(int, void**);
    void (*destroy_stream)(void*);
    const char* (*make_event)(void*, void**);
    void (*destroy_event)(void*, void*);
    const char* (*to_device)(void*, void*, const void*, uint64_t);
    const char* (*to_host)(void*, void*, const void*, uint64_t);
    const char* (*record)(void*, void*);
    const char* (*wait)(void*, void*);
};

constexpr Table kTable{make_stream, destroy_stream, make_event, destroy_event, to_device, to_host, record, wait};

}  // namespace

extern "C" const void* simulated_native_copies() { return &kTable; }

/// Starts copies on a stream of torch, by its number; returns the reason of a failure, or nullptr. `copies`: for each,
/// an address in host memory, one on the device, and the bytes.
extern "C" const char* simulated_copies(int device, int64_t stream, const uint64_t (*copies)[3], size_t count,
                                        bool to_host) {
    return text_of_error([&] {
        for (; count > 0; --count, ++copies) {
            const auto [host, memory, nbytes] = *copies;
            if (nbytes == 0) continue;
            if (to_host) {
                start_copy(get_stream(device, stream), Engine::to_host, reinterpret_cast<void*>(host),
                           reinterpret_cast<const void*>(memory), nbytes);
            } else {
                start_copy(get_stream(device, stream), Engine::to_device, reinterpret_cast<void*>(memory),
                           reinterpret_cast<const void*>(host), nbytes);
            }
        }
    });
}

}  // namespace simulated::native_copies
