// Runs CUDA kernels on the host: each thread of a block is a fiber. A thread runs until it returns or waits in a
// collective (a vote, a shuffle, a barrier). Then another one runs, chosen at random, as blocks are. So a kernel that
// relies on an order that CUDA does not promise fails with some seed.
//
// It ends the program, with a message, for threads that wait for each other forever: a collective that a thread of its
// mask does not reach, or that others of the mask call with another name or mask.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/warp_emulator/fiber.hpp"

// What the linker defines if a kernel has `__shared__` memory.
extern "C" {
extern unsigned char __start_warp_shared[] __attribute__((weak));
extern unsigned char __stop_warp_shared[] __attribute__((weak));
}

namespace warp_emulator {

struct Index {
    unsigned x = 0, y = 0, z = 0;
};

constexpr unsigned LANES = 32;  // in a warp

class Device {
  public:
    using Values = std::array<uint64_t, LANES>;  // what each lane of a warp passed to a collective

    explicit Device(uint64_t seed) : generator_(seed) {}

    // Runs `kernel` in every thread of every block; `threads` is a multiple of 32. Returns when all have returned.
    void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
        CHECK(threads % LANES == 0 && threads <= 1024, "%u threads in a block", threads);
        while (threads_.size() < threads) threads_.push_back(std::make_unique<Thread>());
        running_ = this;
        grid_ = {blocks, 1, 1};
        block_size_ = {threads, 1, 1};
        std::vector<unsigned> order(blocks);
        std::iota(order.begin(), order.end(), 0u);
        std::shuffle(order.begin(), order.end(), generator_);
        for (unsigned block : order) {
            block_ = {block, 1, 1};
            run_block(threads, kernel);
        }
        running_ = nullptr;
    }

    // Waits until all lanes of `mask`, which holds this one, have called the same with it. Returns their values.
    Values exchange(const char* call, unsigned mask, uint64_t value) {
        Thread& thread = *threads_[thread_.x];
        CHECK((mask >> thread_.x % LANES) & 1u, "thread %u calls %s with the mask %08x, which lacks it", thread_.x,
              call, mask);
        wait(thread, call, mask, value);
        return thread.received;
    }

    // Waits until all threads of the block have called it.
    void synchronize() { wait(*threads_[thread_.x], BARRIER, 0, 0); }

    static Device& running() {
        CHECK(running_ != nullptr, "a collective outside a kernel");
        return *running_;
    }

    // The coordinates of the thread that runs.
    static const Index& thread() { return running().thread_; }
    static const Index& block() { return running().block_; }
    static const Index& block_size() { return running().block_size_; }
    static const Index& grid() { return running().grid_; }

  private:
    static constexpr const char* BARRIER = "__syncthreads";

    struct Thread {
        Fiber fiber;
        const char* call = nullptr;  // the collective in which it waits
        unsigned mask = 0;
        uint64_t value = 0;
        Values received{};
    };

    void run_block(unsigned threads, const std::function<void()>& kernel) {
        if (__start_warp_shared != nullptr) {  // CUDA does not clear it
            std::memset(__start_warp_shared, 0xA5, static_cast<size_t>(__stop_warp_shared - __start_warp_shared));
        }
        ready_.resize(threads);
        std::iota(ready_.begin(), ready_.end(), 0u);
        for (unsigned number : ready_) threads_[number]->fiber.start(kernel);
        unsigned done = 0;
        while (!ready_.empty()) {
            std::swap(ready_[generator_() % ready_.size()], ready_.back());
            const unsigned number = ready_.back();
            ready_.pop_back();
            thread_ = {number, 0, 0};
            threads_[number]->fiber.resume();
            if (threads_[number]->fiber.done()) {
                ++done;
            } else {
                release(number, threads);
            }
        }
        for (unsigned number = 0; number < threads; ++number) {
            const Thread& thread = *threads_[number];
            CHECK(done == threads || thread.fiber.done(),
                  "thread %u of block %u waits in %s, mask %08x, for threads that do not come", number, block_.x,
                  thread.call, thread.mask);
        }
    }

    void wait(Thread& thread, const char* call, unsigned mask, uint64_t value) {
        thread.call = call;
        thread.mask = mask;
        thread.value = value;
        thread.fiber.suspend();
    }

    // Makes all threads ready that wait in the collective of thread `number`, if it is the last one.
    void release(unsigned number, unsigned threads) {
        const Thread& last = *threads_[number];
        const bool barrier = last.call == BARRIER;
        const unsigned first = barrier ? 0 : number / LANES * LANES;
        const unsigned end = barrier ? threads : first + LANES;
        std::vector<unsigned> members;
        Values values{};
        for (unsigned other = first; other < end; ++other) {
            if (!barrier && !((last.mask >> other % LANES) & 1u)) continue;
            const Thread& thread = *threads_[other];
            if (thread.call == nullptr || std::strcmp(thread.call, last.call) != 0 || thread.mask != last.mask) return;
            members.push_back(other);
            values[other % LANES] = thread.value;
        }
        for (unsigned member : members) {
            threads_[member]->call = nullptr;
            threads_[member]->received = values;
            ready_.push_back(member);
        }
    }

    static inline Device* running_ = nullptr;
    std::mt19937_64 generator_;
    std::vector<std::unique_ptr<Thread>> threads_;
    std::vector<unsigned> ready_;  // threads that can run
    Index thread_, block_, block_size_, grid_;
};

}  // namespace warp_emulator
