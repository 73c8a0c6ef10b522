// Events: recorded in one stream, waited for by other streams and by the host.

#include "execution/streams.hpp"

namespace simulated {

std::shared_ptr<Recording> record(Stream& stream) {
    Lock lock(machine().mutex);
    check("Event.record");
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
    if (recording->done)
        machine().host.join(recording->clock);
    else
        demand(*machine().streams[recording->stream], recording->sequence);
    return recording->done;
}

void wait_for_recording(const std::shared_ptr<Recording>& recording) {
    Lock lock(machine().mutex);
    check_process("Event.synchronize");
    wait(lock, *machine().streams[recording->stream], recording->sequence, recording->clock);
    check("Event.synchronize");
}

}  // namespace simulated
