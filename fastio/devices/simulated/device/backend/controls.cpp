// torch.ops.simulated.*: what simulated.py offers to tests.

#include <torch/library.h>

#include <map>
#include <sstream>

#include "execution/streams.hpp"
#include "memory/allocator.hpp"
#include "memory/host_memory.hpp"

namespace simulated {

namespace {

void configure(int64_t device, const std::string& name, double value) {
    Lock lock(machine().mutex);
    DeviceSettings& settings = machine().settings.devices.at(device);
    const std::map<std::string, double*> places{
        {"to_device_bandwidth", &settings.to_device_bandwidth},
        {"to_host_bandwidth", &settings.to_host_bandwidth},
        {"peer_bandwidth", &settings.peer_bandwidth},
        {"host_access_bandwidth", &settings.host_access_bandwidth},
        {"latency", &settings.latency},
        {"compute_bandwidth", &settings.compute_bandwidth},
    };
    if (name == "memory_limit")
        settings.memory_limit = static_cast<size_t>(value);
    else
        *places.at(name) = value;
}

void configure_time(bool modelled, double call_seconds) {
    Lock lock(machine().mutex);
    for (int device = 0; device < kDevices; ++device) wait_for_device(lock, device, "configure_time");
    host_waited_until(now());
    machine().settings.modelled = modelled;
    machine().settings.call_seconds = call_seconds;
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
    machine().host_waits = 0;
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

int64_t host_waits() {
    Lock lock(machine().mutex);
    return static_cast<int64_t>(machine().host_waits);
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

/// Address and bytes of each registration.
std::vector<int64_t> list_registrations() {
    std::vector<int64_t> result;
    for (const auto& [address, nbytes] : registrations()) {
        result.push_back(static_cast<int64_t>(address));
        result.push_back(static_cast<int64_t>(nbytes));
    }
    return result;
}

TORCH_LIBRARY(simulated, library) {
    library.def("configure", configure);
    library.def("configure_order", configure_order);
    library.def("configure_time", configure_time);
    library.def("reset", reset);
    library.def("error", get_error);
    library.def("unraised_error", get_unraised_error);
    library.def("trace", trace);
    library.def("host_waits", host_waits);
    library.def("counters", counters);
    library.def("reset_peaks", reset_peaks);
    library.def("empty_cache", [](int64_t device) { empty_cache(static_cast<int>(device)); });
    library.def("register_host", [](int64_t address, int64_t nbytes) { register_host(address, nbytes); });
    library.def("unregister_host", [](int64_t address) { unregister_host(address); });
    library.def("registrations", list_registrations);
}

}  // namespace

}  // namespace simulated
