// Where a thread begins to run.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <thread>

namespace fastio {

// To another processor than this one, with a thread that was just made: the system often lets it wait behind its
// maker, for milliseconds, while another processor is idle. Advice only.
inline void move_apart(std::thread& thread) {
    const int here = sched_getcpu();
    cpu_set_t others;
    if (here < 0 || sched_getaffinity(0, sizeof others, &others) != 0) return;
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) != 0) pthread_setaffinity_np(thread.native_handle(), sizeof others, &others);
}

}  // namespace fastio
