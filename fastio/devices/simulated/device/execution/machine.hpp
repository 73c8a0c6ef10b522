#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "execution/clocks.hpp"
#include "memory/arena.hpp"

namespace simulated {

constexpr int kDevices = 2;
constexpr int kPoolStreams = 32;  // for each device, besides its default stream

/// What executes a work. `none`: what takes no time in the model (events, poison).
enum class Engine { none, compute, to_device, to_host, peer };
constexpr std::array<const char*, 5> kEngineNames{"none", "compute", "to_device", "to_host", "peer"};

/// Parameters of one device. Bandwidths in bytes per second (0: as fast as memcpy), times in seconds.
struct DeviceSettings {
    double to_device_bandwidth = 0;
    double to_host_bandwidth = 0;
    double peer_bandwidth = 0;
    double host_access_bandwidth = 0;  // of kernels that read or write host memory in place
    double latency = 0;                // of each copy
    double compute_bandwidth = 0;      // of the bytes that kernels read and write: they take no less time
    size_t memory_limit = size_t{16} << 30;
};

/// When works start. A work of which the host waits for the end is never held back.
enum class Lateness { never, random, always };

struct Settings {
    std::array<DeviceSettings, kDevices> devices;
    Lateness lateness = Lateness::random;
    uint64_t late_seed = 0;
    double late_seconds = 0.001;  // "random" holds one work in eight back, for up to this time
    bool check_order = true;      // unordered accesses of two streams are errors
    bool poison = true;
    bool modelled = false;        // times are the model's alone: no work waits for its end, no time is measured
    double call_seconds = 10e-6;  // in the modelled time, what the host needs to issue a kernel or a copy, or to ask
};

/// A state of an event: what its stream had to do when it was recorded.
struct Recording {
    int stream;
    uint64_t sequence;
    Clock clock;
    bool done = false;
    double time = 0;
};

/// Host memory that the device may access.
struct Registration {
    uintptr_t begin;
    size_t nbytes;
    bool of_allocator;  // made for a tensor with pin_memory=True
    bool alive = true;
    History history;
};

/// Bytes that a work reads or writes, at the address that tensors have.
struct Range {
    uintptr_t begin;
    size_t nbytes;
    bool write;
};

struct HostRange {
    std::shared_ptr<Registration> registration;
    Range range;
};

struct Work {
    std::string name;
    std::string hint;  // of the error that it is not ordered after another work
    Engine engine = Engine::none;
    int64_t nbytes = 0;
    std::function<void()> run;
    std::shared_ptr<Recording> recording;  // to set done
    std::shared_ptr<Recording> awaited;    // to wait for
    // Set when it is issued.
    std::vector<HostRange> host_ranges;
    uint64_t sequence = 0;
    double issued = 0;
    double not_before = 0;
};

/// A FIFO queue with a thread. Each stream has a number of its own among the streams of all devices.
struct Stream {
    int number;
    int device;
    int64_t id;  // 0: the device's default stream
    std::deque<Work> queue;
    uint64_t issued = 0;
    uint64_t completed = 0;
    uint64_t demanded = 0;  // works up to this one are not held back
    double free_at = 0;     // when its last work ended
    Clock clock;
    std::condition_variable wake;
    std::mt19937_64 random;
};

/// One thing that a device does at a time: all kernels, all copies in one direction.
struct EngineState {
    std::mutex mutex;
    double free_at = 0;
};

/// What the device did. Times in seconds since the process loaded the device.
struct Traced {
    std::string name;
    Engine engine;
    int device;
    int64_t stream;
    int64_t nbytes;
    double issued;
    double started;
    double ended;
};

struct Device {
    Arena arena;
    std::array<EngineState, kEngineNames.size()> engines;
    std::array<std::unique_ptr<Stream>, kPoolStreams + 1> streams;
    int next_stream = 0;
};

/// The state of all devices, guarded by `mutex`. It is never destroyed: threads use it until the process ends.
struct Machine {
    std::mutex mutex;
    std::condition_variable progress;  // a work ended
    std::array<Device, kDevices> devices;
    std::vector<Stream*> streams;  // by number
    Settings settings;
    double host_time = 0;  // in the modelled time: when the host calls
    uint64_t host_waits = 0;
    Clock host;         // what host threads have waited for; one clock for all, so their own order is never an error
    std::string error;  // the first one, raised by each call until it is cleared
    bool error_was_raised = false;
    std::deque<Traced> trace;
    bool forked = false;
};

using Lock = std::unique_lock<std::mutex>;

Machine& machine();

/// Seconds since the process loaded the device.
double now();

/// The time of a host's call: the modelled one, in which the call takes its time, or now. Needs the lock.
double time_of_call();

/// The host waits for a work: count that, unless it had ended (`done`; at `time` in the modelled time). Needs the lock.
void count_wait(bool done, double time);

/// In the modelled time, the host has waited until `time`. Needs the lock.
void host_waited_until(double time);

/// Raises an error in a forked child.
void check_process(const char* call);

/// Raises the error of an earlier asynchronous work, and an error in a forked child.
void check(const char* call);

/// Keeps the first error, for the calls that follow.
void set_error(const std::string& message);

}  // namespace simulated
