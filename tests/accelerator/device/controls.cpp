// torch.ops.simulated.*: what simulated.py offers to tests.

#include <ATen/CPUGeneratorImpl.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <map>
#include <sstream>

#include "allocator.hpp"
#include "generators.hpp"
#include "host_memory.hpp"
#include "streams.hpp"
#include "tensors.hpp"

namespace simulated {

namespace {

std::map<int64_t, int64_t>& windows() {
    static auto& instance = *new std::map<int64_t, int64_t>;
    return instance;
}

void configure(int64_t device, const std::string& name, double value) {
    Lock lock(machine().mutex);
    DeviceSettings& settings = machine().settings.devices.at(device);
    const std::map<std::string, double*> places{
        {"to_device_bandwidth", &settings.to_device_bandwidth},
        {"to_host_bandwidth", &settings.to_host_bandwidth},
        {"peer_bandwidth", &settings.peer_bandwidth},
        {"host_access_bandwidth", &settings.host_access_bandwidth},
        {"latency", &settings.latency},
        {"compute_factor", &settings.compute_factor},
    };
    if (name == "memory_limit")
        settings.memory_limit = static_cast<size_t>(value);
    else
        *places.at(name) = value;
}

void configure_order(int64_t lateness, int64_t seed, double seconds, bool check_order, bool poison) {
    Lock lock(machine().mutex);
    Settings& settings = machine().settings;
    settings.lateness = static_cast<Lateness>(lateness);
    settings.late_seed = static_cast<uint64_t>(seed);
    settings.late_seconds = seconds;
    settings.check_order = check_order;
    settings.poison = poison;
    for (Stream* stream : machine().streams) {
        stream->random.seed(settings.late_seed * 1000 + stream->number);
        stream->wake.notify_one();
        if (settings.lateness != Lateness::always) demand(*stream, stream->issued);
    }
}

void reset() {
    Lock lock(machine().mutex);
    for (int device = 0; device < kDevices; ++device) {
        wait_for_device(lock, device, "reset");
        MemoryCounters& counters = memory_counters(device);
        counters.peak = counters.allocated;
        counters.peak_reserved = counters.reserved;
    }
    machine().error.clear();
    machine().error_was_raised = false;
    machine().trace.clear();
}

std::string get_error() {
    Lock lock(machine().mutex);
    return machine().error;
}

std::string get_unraised_error() {
    Lock lock(machine().mutex);
    for (int device = 0; device < kDevices; ++device) wait_for_device(lock, device, "unraised_error");
    return machine().error_was_raised ? "" : machine().error;
}

/// One line for each work, of fields that tabs separate.
std::string trace() {
    Lock lock(machine().mutex);
    std::ostringstream text;
    text.precision(12);
    for (const Traced& work : machine().trace)
        text << work.name << '\t' << kEngineNames[static_cast<int>(work.engine)] << '\t' << work.device << '\t'
             << work.stream << '\t' << work.nbytes << '\t' << work.issued << '\t' << work.started << '\t' << work.ended
             << '\n';
    return text.str();
}

std::vector<int64_t> counters(int64_t device) {
    Lock lock(machine().mutex);
    const MemoryCounters& now = memory_counters(static_cast<int>(device));
    const size_t limit = machine().settings.devices.at(device).memory_limit;
    std::vector<int64_t> result;
    for (const size_t value : {now.allocated, now.peak, now.reserved, now.peak_reserved, limit})
        result.push_back(static_cast<int64_t>(value));
    return result;
}

void reset_peaks(int64_t device) {
    Lock lock(machine().mutex);
    MemoryCounters& counters = memory_counters(static_cast<int>(device));
    counters.peak = counters.allocated;
    counters.peak_reserved = counters.reserved;
}

/// Address and bytes of each registration, and of each open peer window.
std::vector<int64_t> list_registrations() {
    std::vector<int64_t> result;
    for (const auto& [address, nbytes] : registrations()) {
        result.push_back(static_cast<int64_t>(address));
        result.push_back(static_cast<int64_t>(nbytes));
    }
    return result;
}

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

/// A tensor on the device whose memory is that of `host`, which must be registered and outlive it.
at::Tensor host_view(const at::Tensor& host, int64_t device) {
    auto* memory = const_cast<void*>(host.storage().data());
    TORCH_CHECK(host.is_cpu() && is_registered(reinterpret_cast<uintptr_t>(memory)),
                "host_view: expected a CPU tensor in registered memory");
    c10::DataPtr data(memory, c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device)));
    c10::Storage storage(c10::Storage::use_byte_size_t(), host.storage().nbytes(), std::move(data), nullptr, false);
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), host.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    return view;
}

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

TORCH_LIBRARY(simulated, library) {
    library.def("configure", configure);
    library.def("configure_order", configure_order);
    library.def("reset", reset);
    library.def("error", get_error);
    library.def("unraised_error", get_unraised_error);
    library.def("trace", trace);
    library.def("counters", counters);
    library.def("reset_peaks", reset_peaks);
    library.def("empty_cache", [](int64_t device) { empty_cache(static_cast<int>(device)); });
    library.def("register_host", [](int64_t address, int64_t nbytes) { register_host(address, nbytes); });
    library.def("unregister_host", [](int64_t address) { unregister_host(address); });
    library.def("registrations", list_registrations);
    library.def("open_window", open_window);
    library.def("close_window", close_window);
    library.def("windows", list_windows);
    library.def("host_view", host_view);
    library.def("get_rng_state", get_rng_state);
    library.def("set_rng_state", set_rng_state);
    library.def("manual_seed", manual_seed);
    library.def("initial_seed", initial_seed);
}

}  // namespace

}  // namespace simulated
