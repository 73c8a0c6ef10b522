// Tests the copies of CUDA's driver on a driver of the host's memory.
#include <dlfcn.h>

#include <string>
#include <vector>

#include "device/cuda.hpp"
#include "memory/memory.hpp"
#include "support/errors.hpp"
#include "tests/support/check.hpp"
#include "tests/transfer/staged_stand_ins.hpp"
#include "transfer/staged.hpp"

namespace {

constexpr uint64_t kWindow = 4 * fastio::kPage, kExtent = 5 * kWindow + 100;

void* fake_driver() { return dlopen(FAKE_CUDA, RTLD_NOW); }

int alive() { return reinterpret_cast<int (*)()>(dlsym(fake_driver(), "fake_alive"))(); }
size_t depth() { return reinterpret_cast<size_t (*)()>(dlsym(fake_driver(), "fake_depth"))(); }

std::string reason_of(const char* library) {
    try {
        fastio::cuda_copies(library);
    } catch (const fastio::Refused& error) {
        return error.reason;
    }
    return "";
}

void test_a_machine_without_a_driver() {
    CHECK(reason_of("libno-such-driver.so.1").find("cannot be loaded") != std::string::npos, "the reason");
    CHECK(reason_of("libm.so.6").find("has no cuInit") != std::string::npos, "the reason");
}

void test_there_and_back(const std::vector<int>& devices) {
    std::vector<uint8_t> source(devices.size() * kExtent), target(source.size());
    for (size_t index = 0; index < source.size(); ++index)
        source[index] = static_cast<uint8_t>(index * 7 + index / 300);
    auto extents = [&](std::vector<uint8_t>& memory) {
        std::vector<fastio::Extent> made;
        for (size_t index = 0; index < devices.size(); ++index) {
            made.push_back({index * kExtent, kExtent, &memory[index * kExtent], true});
        }
        return fastio::Extents(made, memory.size());
    };
    fastio::Mapping staging(3 * 2 * kWindow);
    const fastio::StagedMemory memory{{staging.data(), staging.data() + 2 * kWindow, staging.data() + 4 * kWindow},
                                      kWindow};
    const fastio::StagedPlaces places{devices, fastio::cuda_copies(FAKE_CUDA)};
    fastio::Control control;
    MemoryFile file(std::vector<uint8_t>(source.size()));
    fastio::staged_write(file, source.size(), extents(source), {}, places, memory, control);
    CHECK(file.bytes == source, "the file");
    fastio::staged_read(file, extents(target), {}, places, memory, control);
    CHECK(target == source, "the memory");
    CHECK(alive() == 0, "%d streams, events and contexts are left", alive());
    CHECK(depth() == 0, "the thread's current context has changed");
}

void test_an_error_of_the_driver() {
    std::string reason;
    try {
        test_there_and_back({0, 7});
    } catch (const fastio::Refused& error) {
        reason = error.reason;
    }
    CHECK(reason.find("invalid device ordinal") != std::string::npos, "got '%s'", reason.c_str());
    CHECK(alive() == 0, "%d streams, events and contexts are left", alive());
}

template <typename Function>
Function* of_driver(const char* name) {
    return reinterpret_cast<Function*>(dlsym(fake_driver(), name));
}

void test_a_copy_on_a_stream_of_others() {
    void *context = nullptr, *stream = nullptr;
    of_driver<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 1);
    of_driver<int(void*)>("cuCtxPushCurrent_v2")(context);
    of_driver<int(void**, unsigned)>("cuStreamCreate")(&stream, 1);
    of_driver<int(void**)>("cuCtxPopCurrent_v2")(&context);
    std::vector<uint8_t> source{1, 2, 3}, host(3), back(3);
    fastio::cuda_copy(stream, host.data(), source.data(), 3, true);
    fastio::cuda_copy(stream, back.data(), host.data(), 3, false);
    CHECK(back == source, "the memory");
    CHECK(depth() == 0, "the thread's current context has changed");
    bool refused = false;
    try {
        fastio::cuda_copy(nullptr, host.data(), source.data(), 3, true);
    } catch (const fastio::Refused&) {
        refused = true;
    }
    CHECK(refused, "a copy on no stream");
    of_driver<int(void*)>("cuCtxPushCurrent_v2")(context);
    of_driver<int(void*)>("cuStreamDestroy_v2")(stream);
    of_driver<int(void**)>("cuCtxPopCurrent_v2")(&context);
    of_driver<int(int)>("cuDevicePrimaryCtxRelease_v2")(1);
    CHECK(alive() == 0, "%d streams, events and contexts are left", alive());
}

}  // namespace

int main() {
    test_a_machine_without_a_driver();
    test_there_and_back({0});
    test_there_and_back({1, 0, fastio::kHost, 1});
    test_an_error_of_the_driver();
    test_a_copy_on_a_stream_of_others();
    return 0;
}
