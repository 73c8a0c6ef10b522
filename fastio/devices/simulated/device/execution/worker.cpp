#include "execution/worker.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>

#include "execution/engines.hpp"
#include "execution/streams.hpp"

namespace simulated {

namespace {

/// Waits until the first work of the queue may start. False while nothing is queued.
bool may_start(Lock& lock, Stream& stream) {
    if (stream.queue.empty()) {
        stream.wake.wait(lock);
        return false;
    }
    const Work& work = stream.queue.front();
    if (stream.demanded >= work.sequence || work.not_before <= now()) return true;
    if (machine().settings.lateness == Lateness::always)
        stream.wake.wait(lock);
    else
        stream.wake.wait_for(lock, std::chrono::duration<double>(work.not_before - now()));
    return false;
}

}  // namespace

void serve(Stream& stream) {
    prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds: what is modelled in microseconds must not end 50 us late
    Lock lock(machine().mutex);
    while (true) {
        if (!may_start(lock, stream)) continue;
        Work work = std::move(stream.queue.front());
        stream.queue.pop_front();
        if (work.awaited) {
            demand(*machine().streams[work.awaited->stream], work.awaited->sequence);
            machine().progress.wait(lock, [&] { return work.awaited->done; });
            stream.free_at = std::max(stream.free_at, work.awaited->time);
        }
        if (work.run) {
            lock.unlock();
            execute(stream, work);
            work.run = nullptr;  // what it holds is destroyed without the lock
            lock.lock();
        }
        if (work.recording) {
            work.recording->time = std::max({work.recording->time, stream.free_at, work.issued});
            work.recording->done = true;
        }
        stream.completed = work.sequence;
        machine().progress.notify_all();
    }
}

}  // namespace simulated
