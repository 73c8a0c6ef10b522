// A CUDA driver with two devices, whose memory is the host's: the functions that native/device/cuda.cpp loads. As the
// driver, it refuses a stream or an event whose context is not the thread's current one.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kInvalidValue = 1, kInvalidDevice = 101, kInvalidContext = 201;

struct Context {
    std::atomic<int> retained{0};
};
struct Object {
    void* context;
};

Context contexts[2];
std::atomic<int> objects{0};
std::atomic<bool> is_initialised{false};

std::vector<void*>& stack() {
    thread_local std::vector<void*> contexts_of_thread;
    return contexts_of_thread;
}

int make(void** made) {
    if (stack().empty()) return kInvalidContext;
    ++objects;
    *made = new Object{stack().back()};
    return 0;
}

int check(void* object) {
    if (object == nullptr) return kInvalidValue;
    return !stack().empty() && static_cast<Object*>(object)->context == stack().back() ? 0 : kInvalidContext;
}

int destroy(void* object) {
    if (int failed = check(object)) return failed;
    delete static_cast<Object*>(object);
    --objects;
    return 0;
}

int copy(void* to, const void* from, size_t nbytes, void* stream) {
    if (int failed = check(stream)) return failed;
    std::memcpy(to, from, nbytes);
    return 0;
}

}  // namespace

// Streams, events and shares in contexts that exist; what is current on this thread.
EXPORTED int fake_alive() { return objects + contexts[0].retained + contexts[1].retained; }
EXPORTED size_t fake_depth() { return stack().size(); }

EXPORTED int cuInit(unsigned) {
    is_initialised = true;
    return 0;
}
EXPORTED int cuGetErrorString(int error, const char** text) {
    *text = error == kInvalidDevice ? "invalid device ordinal" : "another error";
    return 0;
}
EXPORTED int cuDeviceGet(int* device, int index) {
    if (!is_initialised || index < 0 || index > 1) return kInvalidDevice;
    *device = index;
    return 0;
}
EXPORTED int cuDevicePrimaryCtxRetain(void** context, int device) {
    ++contexts[device].retained;
    *context = &contexts[device];
    return 0;
}
EXPORTED int cuDevicePrimaryCtxRelease_v2(int device) {
    --contexts[device].retained;
    return 0;
}
EXPORTED int cuCtxPushCurrent_v2(void* context) {
    stack().push_back(context);
    return 0;
}
EXPORTED int cuCtxPopCurrent_v2(void** context) {
    *context = stack().back();
    stack().pop_back();
    return 0;
}
EXPORTED int cuStreamCreate(void** stream, unsigned flags) { return flags == 1 ? make(stream) : kInvalidValue; }
EXPORTED int cuStreamDestroy_v2(void* stream) { return destroy(stream); }
EXPORTED int cuStreamSynchronize(void* stream) { return check(stream); }
EXPORTED int cuStreamGetCtx(void* stream, void** context) {
    if (stream == nullptr) return kInvalidValue;
    *context = static_cast<Object*>(stream)->context;
    return 0;
}
EXPORTED int cuEventCreate(void** event, unsigned flags) { return flags == 3 ? make(event) : kInvalidValue; }
EXPORTED int cuEventDestroy_v2(void* event) { return destroy(event); }
EXPORTED int cuEventRecord(void* event, void* stream) {
    const int failed = check(event);
    return failed ? failed : check(stream);
}
EXPORTED int cuEventSynchronize(void* event) { return check(event); }
EXPORTED int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t nbytes, void* stream) {
    return copy(reinterpret_cast<void*>(to), from, nbytes, stream);
}
EXPORTED int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t nbytes, void* stream) {
    return copy(to, reinterpret_cast<const void*>(from), nbytes, stream);
}
