// Registration of host memory for callers that have no torch: by ctypes, with the numbers of CUDA's errors.

#include <exception>

#include "memory/host_memory.hpp"

namespace {

constexpr int kSuccess = 0;
constexpr int kAlreadyRegistered = 712;  // cudaErrorHostMemoryAlreadyRegistered
constexpr int kNotRegistered = 713;      // cudaErrorHostMemoryNotRegistered

}  // namespace

extern "C" int simulated_host_register(void* address, size_t nbytes, unsigned) {
    try {
        simulated::register_host(reinterpret_cast<uintptr_t>(address), nbytes);
    } catch (const std::exception&) {
        return kAlreadyRegistered;
    }
    return kSuccess;
}

extern "C" int simulated_host_unregister(void* address) {
    try {
        simulated::unregister_host(reinterpret_cast<uintptr_t>(address));
    } catch (const std::exception&) {
        return kNotRegistered;
    }
    return kSuccess;
}
