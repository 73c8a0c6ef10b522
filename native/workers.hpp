// A few threads that share one piece of work, for the length of one call.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace fastio {

// Run `work(thread_number)` on `count` threads, the calling one being number 0; rethrow the first exception.
// `on_error` is called as soon as one fails, so that the others can stop. Fewer threads run if the system has none.
inline void run_workers(unsigned count, const std::function<void(unsigned)>& work,
                        const std::function<void()>& on_error) {
    std::mutex mutex;
    std::exception_ptr failure;
    auto guarded = [&](unsigned number) {
        try {
            work(number);
        } catch (...) {
            {
                std::lock_guard<std::mutex> lock(mutex);
                if (!failure) failure = std::current_exception();
            }
            on_error();
        }
    };
    std::vector<std::thread> threads;
    for (unsigned number = 1; number < count; ++number) {
        try {
            threads.emplace_back(guarded, number);
        } catch (const std::system_error&) {
            break;
        }
    }
    guarded(0);
    for (std::thread& thread : threads) thread.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace fastio
