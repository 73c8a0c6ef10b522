#include "device/cuda.hpp"

#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <string>

#include "support/errors.hpp"

namespace fastio {

namespace {

// From the driver's API (cuda.h): handles are pointers, results and devices are ints, 0 is success.
using Context = void*;
constexpr unsigned kNonBlockingStream = 1;
constexpr unsigned kBlockingWait = 1, kNoTiming = 2;  // of events: the waiting thread sleeps

struct Driver {
    int (*init)(unsigned);
    int (*error_string)(int, const char**);
    int (*device_get)(int*, int);
    int (*context_retain)(Context*, int);
    int (*context_release)(int);
    int (*context_push)(Context);
    int (*context_pop)(Context*);
    int (*stream_create)(void**, unsigned);
    int (*stream_destroy)(void*);
    int (*stream_synchronize)(void*);
    int (*stream_context)(void*, Context*);
    int (*event_create)(void**, unsigned);
    int (*event_destroy)(void*);
    int (*event_record)(void*, void*);
    int (*event_synchronize)(void*);
    int (*copy_to_device)(uint64_t, const void*, size_t, void*);
    int (*copy_to_host)(void*, uint64_t, size_t, void*);
};

Driver driver;  // set before the table is handed out

const char* text_of(int result) {
    if (result == 0) return nullptr;
    const char* text = nullptr;
    if (driver.error_string(result, &text) != 0 || text == nullptr) return "unknown CUDA error";
    return text;
}

// A stream, and a share in the primary context of its device, which is the one that torch uses.
struct Stream {
    int device;
    Context context = nullptr;
    void* stream = nullptr;
};

Stream& stream_of(void* handle) { return *static_cast<Stream*>(handle); }

// Calls `work` in a context. The thread's own context, which is torch's current device, is the same after it.
template <typename Work>
const char* in_context(Context context, const Work& work) {
    if (int failed = driver.context_push(context)) return text_of(failed);
    const int result = work();
    Context popped;
    driver.context_pop(&popped);
    return text_of(result);
}

template <typename Work>
const char* in_context(const Stream& stream, const Work& work) {
    return in_context(stream.context, work);
}

const char* make_stream(int index, void** made) {
    int device = 0;
    if (int failed = driver.init(0)) return text_of(failed);
    if (int failed = driver.device_get(&device, index)) return text_of(failed);
    auto stream = std::make_unique<Stream>();
    stream->device = device;
    if (int failed = driver.context_retain(&stream->context, device)) return text_of(failed);
    const char* failed = in_context(*stream, [&] { return driver.stream_create(&stream->stream, kNonBlockingStream); });
    if (failed != nullptr) {
        driver.context_release(device);
        return failed;
    }
    *made = stream.release();
    return nullptr;
}

void destroy_stream(void* handle) {
    std::unique_ptr<Stream> stream(static_cast<Stream*>(handle));
    in_context(*stream, [&] {
        driver.stream_synchronize(stream->stream);  // an event's wait has reported a failure
        return driver.stream_destroy(stream->stream);
    });
    driver.context_release(stream->device);
}

const char* make_event(void* stream, void** event) {
    return in_context(stream_of(stream), [&] { return driver.event_create(event, kBlockingWait | kNoTiming); });
}

void destroy_event(void* stream, void* event) {
    in_context(stream_of(stream), [&] { return driver.event_destroy(event); });
}

const char* to_device(void* handle, void* device_memory, const void* host, uint64_t nbytes) {
    const Stream& stream = stream_of(handle);
    return in_context(stream, [&] {
        return driver.copy_to_device(reinterpret_cast<uintptr_t>(device_memory), host, nbytes, stream.stream);
    });
}

const char* to_host(void* handle, void* host, const void* device_memory, uint64_t nbytes) {
    const Stream& stream = stream_of(handle);
    return in_context(stream, [&] {
        return driver.copy_to_host(host, reinterpret_cast<uintptr_t>(device_memory), nbytes, stream.stream);
    });
}

const char* record(void* handle, void* event) {
    const Stream& stream = stream_of(handle);
    return in_context(stream, [&] { return driver.event_record(event, stream.stream); });
}

const char* wait(void* stream, void* event) {
    return in_context(stream_of(stream), [&] { return driver.event_synchronize(event); });
}

constexpr DeviceCopies kCopies{make_stream, destroy_stream, make_event, destroy_event,
                               to_device,   to_host,        record,     wait};

template <typename Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw Refused(std::string("this CUDA driver has no ") + name);
}

Driver load(const char* name) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw Refused(std::string("the CUDA driver cannot be loaded: ") + dlerror());
    Driver found{};
    find(library, "cuInit", found.init);
    find(library, "cuGetErrorString", found.error_string);
    find(library, "cuDeviceGet", found.device_get);
    find(library, "cuDevicePrimaryCtxRetain", found.context_retain);
    find(library, "cuDevicePrimaryCtxRelease_v2", found.context_release);
    find(library, "cuCtxPushCurrent_v2", found.context_push);
    find(library, "cuCtxPopCurrent_v2", found.context_pop);
    find(library, "cuStreamCreate", found.stream_create);
    find(library, "cuStreamDestroy_v2", found.stream_destroy);
    find(library, "cuStreamSynchronize", found.stream_synchronize);
    find(library, "cuStreamGetCtx", found.stream_context);
    find(library, "cuEventCreate", found.event_create);
    find(library, "cuEventDestroy_v2", found.event_destroy);
    find(library, "cuEventRecord", found.event_record);
    find(library, "cuEventSynchronize", found.event_synchronize);
    find(library, "cuMemcpyHtoDAsync_v2", found.copy_to_device);
    find(library, "cuMemcpyDtoHAsync_v2", found.copy_to_host);
    return found;
}

}  // namespace

const DeviceCopies* cuda_copies(const char* library) {
    static std::mutex mutex;
    static bool is_loaded = false;
    std::lock_guard<std::mutex> lock(mutex);
    if (!is_loaded) driver = load(library);
    is_loaded = true;
    return &kCopies;
}

void cuda_copy(void* stream, void* destination, const void* source, uint64_t nbytes, bool to_host) {
    cuda_copies();
    Context context = nullptr;
    const char* failed = text_of(driver.stream_context(stream, &context));
    if (failed == nullptr) {
        failed = in_context(context, [&] {
            return to_host ? driver.copy_to_host(destination, reinterpret_cast<uintptr_t>(source), nbytes, stream)
                           : driver.copy_to_device(reinterpret_cast<uintptr_t>(destination), source, nbytes, stream);
        });
    }
    if (failed != nullptr) throw Refused(failed);
}

}  // namespace fastio
