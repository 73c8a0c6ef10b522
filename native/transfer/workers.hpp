// Runs the blocks of one piece of work on a few threads, for the length of one call.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "support/thread_affinity.hpp"

namespace fastio {

// Runs `work(thread, block)` for each block from 0 to `blocks` - 1, lowest first, on up to `threads` threads, fewer if
// the system has no more. The calling thread is thread 0.
// After an error no block is started. The running ones finish, then the exception of the lowest failed block is
// rethrown. `on_error` is called as soon as a block fails, so that waiting threads can stop.
inline void run_workers(unsigned threads, uint64_t blocks, const std::function<void(unsigned, uint64_t)>& work,
                        const std::function<void()>& on_error = {}) {
    std::atomic<uint64_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::exception_ptr failure;
    uint64_t failure_block = blocks;
    auto take_blocks = [&](unsigned number) {
        while (!failed) {
            const uint64_t block = next.fetch_add(1);
            if (block >= blocks) return;
            try {
                work(number, block);
            } catch (...) {
                {
                    std::lock_guard<std::mutex> lock(mutex);
                    if (block < failure_block) {
                        failure = std::current_exception();
                        failure_block = block;
                    }
                }
                failed = true;
                if (on_error) on_error();
            }
        }
    };
    std::vector<std::thread> others;
    for (unsigned number = 1; number < threads; ++number) {
        try {
            others.emplace_back(take_blocks, number);
            move_to_another_cpu(others.back());
        } catch (const std::system_error&) {
            break;
        }
    }
    take_blocks(0);
    for (std::thread& thread : others) thread.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace fastio
