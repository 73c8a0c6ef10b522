#include "execution/engines.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <thread>

namespace simulated {

namespace {

constexpr size_t kTraced = 1'000'000;
constexpr double kLag = 0.001;  // seconds that the model may be behind the clock

bool is_mapped(uintptr_t begin, size_t nbytes) {
    const uintptr_t page = sysconf(_SC_PAGESIZE);
    const uintptr_t first = begin / page * page;
    std::vector<unsigned char> resident((begin + nbytes - first + page - 1) / page);
    return mincore(reinterpret_cast<void*>(first), begin + nbytes - first, resident.data()) == 0;
}

/// What is wrong with the host memory that the work accesses, or an empty string.
std::string host_memory_fault(const Work& work) {
    for (const auto& [registration, range] : work.host_ranges) {
        bool alive;
        {
            Lock lock(machine().mutex);
            alive = registration->alive;
        }
        if (alive && is_mapped(range.begin, range.nbytes)) continue;
        std::ostringstream text;
        text << work.name << ": " << range.nbytes << " bytes of host memory at 0x" << std::hex << range.begin
             << (alive ? " were unmapped" : " were unregistered") << " before the work ran";
        return text.str();
    }
    return {};
}

double modelled_seconds(const Work& work, const DeviceSettings& settings) {
    auto transfer = [](double nbytes, double bandwidth) { return bandwidth > 0 ? nbytes / bandwidth : 0; };
    const auto nbytes = static_cast<double>(work.nbytes);
    switch (work.engine) {
        case Engine::to_device:
            return settings.latency + transfer(nbytes, settings.to_device_bandwidth);
        case Engine::to_host:
            return settings.latency + transfer(nbytes, settings.to_host_bandwidth);
        case Engine::peer:
            return settings.latency + transfer(nbytes, settings.peer_bandwidth);
        default:
            break;
    }
    double host_bytes = 0;
    for (const HostRange& accessed : work.host_ranges) host_bytes += static_cast<double>(accessed.range.nbytes);
    return std::max(transfer(nbytes, settings.compute_bandwidth), transfer(host_bytes, settings.host_access_bandwidth));
}

void run(Stream& stream, Work& work) {
    std::string fault = host_memory_fault(work);
    if (fault.empty()) {
        try {
            if (work.run) work.run();
        } catch (const std::exception& error) {
            fault = work.name + ": " + error.what();
        }
    }
    if (fault.empty()) return;
    Lock lock(machine().mutex);
    set_error("simulated:" + std::to_string(stream.device) + ": " + fault);
}

}  // namespace

void execute(Stream& stream, Work& work) {
    if (work.engine == Engine::none) return run(stream, work);
    EngineState& engine = machine().devices[stream.device].engines[static_cast<int>(work.engine)];
    std::lock_guard<std::mutex> busy(engine.mutex);
    const double arrived = now();
    run(stream, work);
    DeviceSettings settings;
    bool modelled;
    {
        Lock lock(machine().mutex);
        settings = machine().settings.devices[stream.device];
        modelled = machine().settings.modelled;
    }
    // A work that waited starts when the engine and the stream became free, though the thread woke up later.
    double started = std::max({work.issued, stream.free_at, engine.free_at});
    const double measured = modelled ? 0 : now() - arrived;
    if (!modelled) started = std::max(std::min(arrived, std::max(started, work.not_before)), arrived - kLag);
    const double ended = started + std::max(measured, modelled_seconds(work, settings));
    if (const double left = ended - now(); left > 0 && !modelled)
        std::this_thread::sleep_for(std::chrono::duration<double>(left));
    engine.free_at = ended;
    Lock lock(machine().mutex);
    stream.free_at = ended;
    auto& trace = machine().trace;
    trace.push_back({work.name, work.engine, stream.device, stream.id, work.nbytes, work.issued, started, ended});
    if (trace.size() > kTraced) trace.pop_front();
}

}  // namespace simulated
