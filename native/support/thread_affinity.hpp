// Chooses the CPU that a new thread starts on.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <thread>

namespace fastio {

// Moves a new thread to another CPU than the caller's. The system often lets it wait behind its creator for
// milliseconds, while another CPU is idle. Afterwards it may run anywhere again. Errors are ignored.
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
