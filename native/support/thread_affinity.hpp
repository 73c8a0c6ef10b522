// Where a thread begins to run.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <thread>

namespace fastio {

// To another processor than this one, with a thread that was just made: the system often lets it wait behind its
// maker, for milliseconds, while another processor is idle. Afterwards it may run anywhere again. Advice only.
inline void move_to_another_cpu(std::thread& thread) {
    const int here = sched_getcpu();
    cpu_set_t all;
    if (here < 0 || sched_getaffinity(0, sizeof all, &all) != 0) return;
    cpu_set_t others = all;
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) == 0) return;
    pthread_setaffinity_np(thread.native_handle(), sizeof others, &others);
    pthread_setaffinity_np(thread.native_handle(), sizeof all, &all);
}

}  // namespace fastio
