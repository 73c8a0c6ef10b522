// Random numbers: one generator for each device, and their states.

#include "backend/generators.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <torch/library.h>
#include <torch/version.h>

#include "execution/streams.hpp"

namespace simulated {

namespace {

/// A generator whose state is that of the CPU's. An operator on the device draws its seed from it when it is issued.
struct DeviceGenerator final : at::CPUGeneratorImpl {
    explicit DeviceGenerator(int device) {
        device_ = {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)};
        key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
    }
};

at::Tensor get_rng_state(int64_t device) {
    at::Generator generator = default_generator(static_cast<int>(device));
    const std::lock_guard<std::mutex> lock(generator.mutex());
    return generator.get_state();
}

void set_rng_state(const at::Tensor& state, int64_t device) {
    at::Generator generator = default_generator(static_cast<int>(device));
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
}

void manual_seed(int64_t seed, int64_t device) {
    at::Generator generator = default_generator(static_cast<int>(device));
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(static_cast<uint64_t>(seed));
}

int64_t initial_seed(int64_t device) {
    return static_cast<int64_t>(default_generator(static_cast<int>(device)).current_seed());
}

TORCH_LIBRARY_FRAGMENT(simulated, library) {
    library.def("get_rng_state", get_rng_state);
    library.def("set_rng_state", set_rng_state);
    library.def("manual_seed", manual_seed);
    library.def("initial_seed", initial_seed);
}

#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR < 207
REGISTER_GENERATOR_PRIVATEUSE1(new_generator)
#endif

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) {
    return at::make_generator<DeviceGenerator>(device < 0 ? current_device() : device);
}

const at::Generator& default_generator(int device) {
    static auto& generators = *new std::array<at::Generator, kDevices>{at::make_generator<DeviceGenerator>(0),
                                                                       at::make_generator<DeviceGenerator>(1)};
    return generators.at(device);
}

}  // namespace simulated
