// What a process has one of.
#pragma once

#include <pthread.h>

namespace fastio {

// The one of its kind, which has a `mutex`. It is never destroyed, for a thread may still use it at exit; and whoever
// forks holds the mutex meanwhile, or a thread that the child does not have might leave it locked there.
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
