// Events: recorded in one stream, waited for by other streams and by the host.

#include "execution/streams.hpp"

namespace simulated {

std::shared_ptr<Recording> record(Stream& stream) {
    Lock lock(machine().mutex);
    check("Event.record");
    return record_unchecked(stream);
}

std::shared_ptr<Recording> record_unchecked(Stream& stream) {
    auto recording = std::make_shared<Recording>();
    Work work;
    work.name = "Event.record";
    work.recording = recording;
    recording->stream = stream.number;
    recording->sequence = issue_unchecked(stream, std::move(work));
    recording->clock = stream.clock;
    return recording;
}

void wait_in_stream(Stream& stream, const std::shared_ptr<Recording>& awaited) {
    Lock lock(machine().mutex);
    check("Event.wait");
    Work work;
    work.name = "Event.wait";
    work.awaited = awaited;
    issue_unchecked(stream, std::move(work));
    stream.clock.join(awaited->clock);
}

bool has_ended(const std::shared_ptr<Recording>& recording) {
    Lock lock(machine().mutex);
    check("Event.query");
    time_of_call();
    if (is_over(lock, *recording)) return true;
    demand(*machine().streams[recording->stream], recording->sequence);
    return false;
}

void perform(Lock& lock, const Recording& recording) {
    demand(*machine().streams[recording.stream], recording.sequence);
    machine().progress.wait(lock, [&] { return recording.done; });
}

bool is_over(Lock& lock, const Recording& recording) {
    if (machine().settings.modelled) perform(lock, recording);
    if (!recording.done || (machine().settings.modelled && recording.time > machine().host_time)) return false;
    machine().host.join(recording.clock);
    return true;
}

void wait_for_recording(const std::shared_ptr<Recording>& recording) {
    Lock lock(machine().mutex);
    check_process("Event.synchronize");
    await(lock, *recording);
    check("Event.synchronize");
}

void await(Lock& lock, const Recording& recording) {
    const bool done = recording.done;
    perform(lock, recording);
    count_wait(done, recording.time);
    machine().host.join(recording.clock);
    host_waited_until(recording.time);
}

}  // namespace simulated
