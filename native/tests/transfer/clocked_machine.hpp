// A modelled machine for staged transfers: a file and a device that take modelled time, and move no bytes.
//
// Each worker has a clock. A call of a worker waits until no other worker's clock is behind; then it is served, which
// advances the clock, and until its next call the worker is the only one that runs. So the times are the same in every
// run, on any number of cores. The workers themselves take no modelled time.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "device/device_copies.hpp"
#include "tests/support/check.hpp"
#include "transfer/staged_file.hpp"

// Bandwidths in bytes per second, times in seconds.
struct ModelledMachine {
    double file_each = 1e18;     // of the file, of one reader
    double file_all;             // of the file, of all readers together
    double file_latency = 0;     // of each request, during which the file serves others
    uint64_t request = 2 << 20;  // bytes of one request
    double bus;                  // of copies in one direction
    double call = 3e-6;          // what the host needs to start a copy
};

class Clocks {
  public:
    explicit Clocks(unsigned workers) : workers_(workers) {}

    // Serves the calling worker at its time: `service` takes that, and returns the time at which the worker goes on.
    void serve(const std::function<double(double)>& service) {
        std::unique_lock<std::mutex> lock(mutex_);
        if (of_thread().of != this) {
            of_thread() = {this, times_.size()};
            times_.push_back(0);
        }
        const size_t worker = of_thread().worker;
        if (times_.size() == workers_) pass();  // all have come
        changed_.wait(lock, [&] { return turn_ == worker; });
        times_[worker] = service(times_[worker]);
        end_ = std::max(end_, times_[worker]);
    }
    // The calling worker makes no further call.
    void leave() {
        serve([](double time) { return time; });
        std::lock_guard<std::mutex> lock(mutex_);
        times_[of_thread().worker] = kGone;
        pass();
        of_thread() = {nullptr, 0};
    }
    // When the last worker ended.
    double end() const { return end_; }

  private:
    static constexpr double kGone = 1e30;
    struct Worker {
        const Clocks* of;
        size_t worker;
    };

    std::mutex mutex_;
    std::condition_variable changed_;
    unsigned workers_;
    std::vector<double> times_;
    size_t turn_ = SIZE_MAX;
    double end_ = 0;

    static Worker& of_thread() {
        thread_local Worker worker{nullptr, 0};
        return worker;
    }
    void pass() {
        turn_ = static_cast<size_t>(std::min_element(times_.begin(), times_.end()) - times_.begin());
        changed_.notify_all();
    }
};

// Serves one request after the other.
struct Resource {
    double bandwidth;
    double free_at = 0;

    // When a request of `nbytes` that comes at `time` is done.
    double done(double time, uint64_t nbytes) {
        free_at = std::max(free_at, time) + static_cast<double>(nbytes) / bandwidth;
        return free_at;
    }
};

class ClockedFile : public fastio::StagedFile {
  public:
    ClockedFile(Clocks& clocks, const ModelledMachine& machine)
        : clocks_(clocks), machine_(machine), all_{machine.file_all} {}

    void read(uint8_t*, uint64_t begin, uint64_t end, const std::function<void(uint64_t, uint64_t)>& filled) override {
        for (uint64_t at = begin; at < end; at += machine_.request) {
            move(std::min(machine_.request, end - at));
            filled(at, std::min(at + machine_.request, end));
        }
    }
    void write(const uint8_t*, uint64_t begin, uint64_t end) override {
        for (uint64_t at = begin; at < end; at += machine_.request) move(std::min(machine_.request, end - at));
    }

    uint64_t moved = 0;  // bytes

  private:
    Clocks& clocks_;
    const ModelledMachine& machine_;
    Resource all_;

    void move(uint64_t nbytes) {
        clocks_.serve([&](double time) {
            moved += nbytes;
            const double each = time + static_cast<double>(nbytes) / machine_.file_each;
            return std::max(each, all_.done(time, nbytes)) + machine_.file_latency;
        });
    }
};

// Only one at a time.
class ClockedDevice {
  public:
    ClockedDevice(Clocks& clocks, const ModelledMachine& machine) {
        state() = {&clocks, machine.call, {machine.bus}, 0};
    }

    const fastio::DeviceCopies* copies() const {
        static constexpr fastio::DeviceCopies table{make_stream, destroy_stream, make_event, destroy_event,
                                                    to_device,   to_host,        record,     wait};
        return &table;
    }
    uint64_t copied() const { return state().copied; }

  private:
    struct State {
        Clocks* clocks;
        double call;
        Resource bus;
        uint64_t copied;
    };

    static State& state() {
        static State instance{nullptr, 0, {0}, 0};
        return instance;
    }
    // A stream and an event are the time at which their work is done.
    static double& time_of(void* handle) { return *static_cast<double*>(handle); }
    static const char* make_stream(int, void** stream) {
        *stream = new double(0);
        return nullptr;
    }
    static void destroy_stream(void* stream) {
        delete static_cast<double*>(stream);
        state().clocks->leave();
    }
    static const char* make_event(void*, void** event) { return make_stream(0, event); }
    static void destroy_event(void*, void* event) { delete static_cast<double*>(event); }
    static const char* copy(void* stream, uint64_t nbytes) {
        state().clocks->serve([&](double time) {
            state().copied += nbytes;
            time += state().call;
            time_of(stream) = state().bus.done(std::max(time, time_of(stream)), nbytes);
            return time;
        });
        return nullptr;
    }
    static const char* to_device(void* stream, void*, const void*, uint64_t nbytes) { return copy(stream, nbytes); }
    static const char* to_host(void* stream, void*, const void*, uint64_t nbytes) { return copy(stream, nbytes); }
    static const char* record(void* stream, void* event) {
        time_of(event) = time_of(stream);
        return nullptr;
    }
    static const char* wait(void*, void* event) {
        state().clocks->serve([&](double time) { return std::max(time, time_of(event)); });
        return nullptr;
    }
};
