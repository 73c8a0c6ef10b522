#include "execution/streams.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

#include "execution/worker.hpp"
#include "memory/allocator.hpp"
#include "memory/host_memory.hpp"

namespace simulated {

namespace {

constexpr size_t kBacklog = 1024;  // works that a stream queues before a call waits, as CUDA's launch queue

thread_local int device_of_thread = 0;
thread_local std::array<int64_t, kDevices> stream_of_thread{};

double hold_back(Stream& stream, const Work& work) {
    const Settings& settings = machine().settings;
    if (work.recording || work.awaited || settings.lateness == Lateness::never) return 0;
    if (settings.lateness == Lateness::always) return 1e30;
    if (stream.random() % 8 != 0) return 0;
    return now() + settings.late_seconds * static_cast<double>(stream.random() % 1024) / 1024;
}

uint64_t enqueue(Stream& stream, Work work) {
    work.sequence = ++stream.issued;
    work.issued = work.engine == Engine::none && machine().settings.modelled ? machine().host_time : time_of_call();
    work.not_before = hold_back(stream, work);
    stream.clock.advance(stream.number, work.sequence);
    stream.queue.push_back(std::move(work));
    stream.wake.notify_one();
    return stream.issued;
}

}  // namespace

int current_device() { return device_of_thread; }

void set_current_device(int device) { device_of_thread = device; }

Stream& get_stream(int device, int64_t id) {
    Lock lock(machine().mutex);
    auto& slot = machine().devices.at(device).streams.at(id);
    if (!slot) {
        check("Stream");
        slot = std::make_unique<Stream>();
        slot->number = static_cast<int>(machine().streams.size());
        slot->device = device;
        slot->id = id;
        slot->random.seed(machine().settings.late_seed * 1000 + slot->number);
        machine().streams.push_back(slot.get());
        std::thread(serve, std::ref(*slot)).detach();
    }
    return *slot;
}

int64_t current_stream_id(int device) { return stream_of_thread.at(device); }

Stream& current_stream(int device) { return get_stream(device, stream_of_thread.at(device)); }

void set_current_stream(int device, int64_t id) { stream_of_thread.at(device) = id; }

Stream& next_pool_stream(int device) {
    int id;
    {
        Lock lock(machine().mutex);
        int& next = machine().devices.at(device).next_stream;
        id = 1 + next;
        next = (next + 1) % kPoolStreams;
    }
    return get_stream(device, id);
}

uint64_t issue(Lock& lock, Stream& stream, Work work, const std::vector<Range>& ranges) {
    check(work.name.c_str());
    if (stream.queue.size() >= kBacklog) {
        machine().host_waits += !machine().settings.modelled;  // there, the machine's speed has no effect
        demand(stream, stream.issued - kBacklog / 2);
        machine().progress.wait(lock, [&] { return stream.queue.size() < kBacklog; });
    }
    Clock ordered = stream.clock;
    ordered.join(machine().host);
    std::vector<History*> histories;
    for (const Range& range : ranges) {
        if (range.nbytes == 0) continue;
        History* history = nullptr;
        if (Block* block = find_block(range.begin)) {
            if (!block->allocated) {
                set_error(work.name + ": uses device memory that was freed");
                check(work.name.c_str());
            }
            history = &block->history;
        } else if (auto registration = find_registration(range.begin)) {
            history = &registration->history;
            work.host_ranges.push_back({registration, range});
        }
        TORCH_CHECK(history, work.name, ": the device cannot access address ", range.begin,
                    ": it is neither device memory nor registered host memory");
        const auto unordered = history->conflict(range.begin, range.begin + range.nbytes, range.write, ordered);
        if (unordered && machine().settings.check_order) {
            const Stream& other = *machine().streams[unordered->stream];
            set_error(work.name + " on stream " + std::to_string(stream.id) +
                      " of simulated:" + std::to_string(stream.device) + (range.write ? " writes" : " reads") +
                      " what " + unordered->work + " on stream " + std::to_string(other.id) +
                      " of simulated:" + std::to_string(other.device) + (unordered->write ? " writes" : " reads") +
                      ", without waiting for it" + work.hint);
            check(work.name.c_str());
        }
        histories.push_back(history);
    }
    stream.clock.join(machine().host);
    const std::string name = work.name;
    const uint64_t sequence = enqueue(stream, std::move(work));
    size_t next = 0;
    for (const Range& range : ranges)
        if (range.nbytes != 0)
            histories[next++]->add(
                {range.begin, range.begin + range.nbytes, stream.number, sequence, range.write, name}, machine().host);
    return sequence;
}

uint64_t issue_unchecked(Stream& stream, Work work) {
    stream.clock.join(machine().host);
    return enqueue(stream, std::move(work));
}

void demand(Stream& stream, uint64_t sequence) {
    stream.demanded = std::max(stream.demanded, sequence);
    stream.wake.notify_one();
}

void wait_for_stream(Lock& lock, Stream& stream, const char* call) {
    check_process(call);
    const uint64_t issued = stream.issued;
    const Clock clock = stream.clock;
    const bool done = stream.completed >= issued;
    demand(stream, issued);
    machine().progress.wait(lock, [&] { return stream.completed >= issued; });
    count_wait(done, stream.free_at);
    machine().host.join(clock);
    host_waited_until(stream.free_at);
}

bool has_ended(Lock& lock, Stream& stream) {
    const bool modelled = machine().settings.modelled;
    time_of_call();
    demand(stream, stream.issued);
    if (modelled) machine().progress.wait(lock, [&] { return stream.completed >= stream.issued; });
    if (stream.completed < stream.issued || (modelled && stream.free_at > machine().host_time)) return false;
    machine().host.join(stream.clock);
    return true;
}

void wait_for_device(Lock& lock, int device, const char* call) {
    check_process(call);
    for (const auto& stream : machine().devices.at(device).streams)
        if (stream) wait_for_stream(lock, *stream, call);
}

}  // namespace simulated
