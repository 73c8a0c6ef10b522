// Fork-safe process-wide singleton.
#pragma once

#include <pthread.h>

namespace fastio {

// Returns the only instance of T, which has a member `mutex`. It is never destroyed, because a thread may still use it
// at exit. fork() holds the mutex, so that the child does not inherit it locked by a thread that it does not have.
template <typename T>
T& fork_safe_singleton() {
    static T* instance = [] {
        auto* made = new T;
        pthread_atfork([] { fork_safe_singleton<T>().mutex.lock(); }, [] { fork_safe_singleton<T>().mutex.unlock(); },
                       [] { fork_safe_singleton<T>().mutex.unlock(); });
        return made;
    }();
    return *instance;
}

}  // namespace fastio
