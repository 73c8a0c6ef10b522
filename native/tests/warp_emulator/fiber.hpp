// A function with a stack of its own, which can suspend itself between two instructions and be resumed later.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <functional>
#include <utility>

#include "tests/support/check.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace warp_emulator {

class Fiber {
  public:
    Fiber() {
        void* mapped = mmap(nullptr, GUARD + STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(mapped != MAP_FAILED, "mmap of a stack");
        stack_ = static_cast<char*>(mapped);
        CHECK(mprotect(stack_ + GUARD, STACK, PROT_READ | PROT_WRITE) == 0, "mprotect of a stack");
        CHECK(getcontext(&own_) == 0, "getcontext");
        own_.uc_stack.ss_sp = stack_ + GUARD;
        own_.uc_stack.ss_size = STACK;
        own_.uc_link = nullptr;
        // makecontext passes ints only, so the address travels in two halves.
        const auto address = reinterpret_cast<uintptr_t>(this);
        makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::main), 2, static_cast<unsigned>(address >> 32),
                    static_cast<unsigned>(address));
#if defined(__SANITIZE_THREAD__)
        sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
    }

    ~Fiber() {
#if defined(__SANITIZE_THREAD__)
        __tsan_destroy_fiber(sanitizer_fiber_);
#endif
        munmap(stack_, GUARD + STACK);
    }

    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Sets the function that the next resume() enters. The one before must have returned.
    void start(std::function<void()> function) {
        CHECK(done_, "a fiber that is not done was started");
        function_ = std::move(function);
        done_ = false;
    }

    bool done() const { return done_; }

    // Runs the function until it suspends itself or returns.
    void resume() {
#if defined(__SANITIZE_ADDRESS__)
        void* fake_stack = nullptr;
        __sanitizer_start_switch_fiber(&fake_stack, stack_ + GUARD, STACK);
#elif defined(__SANITIZE_THREAD__)
        sanitizer_caller_ = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(sanitizer_fiber_, 0);
#endif
        swapcontext(&caller_, &own_);
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    }

    // Called by the function itself: returns to resume().
    void suspend() {
#if defined(__SANITIZE_ADDRESS__)
        void* fake_stack = nullptr;
        __sanitizer_start_switch_fiber(&fake_stack, caller_stack_, caller_nbytes_);
#elif defined(__SANITIZE_THREAD__)
        __tsan_switch_to_fiber(sanitizer_caller_, 0);
#endif
        swapcontext(&own_, &caller_);
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fake_stack, &caller_stack_, &caller_nbytes_);
#endif
    }

  private:
    static constexpr size_t GUARD = 4096;  // inaccessible, below the stack
    static constexpr size_t STACK = 64 << 10;

    static void main(unsigned high, unsigned low) {
        auto* fiber = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(high) << 32 | low);
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(nullptr, &fiber->caller_stack_, &fiber->caller_nbytes_);
#endif
        for (;;) {
            fiber->function_();
            fiber->done_ = true;
            fiber->suspend();
        }
    }

    char* stack_;
    ucontext_t own_{}, caller_{};
    std::function<void()> function_;
    bool done_ = true;
#if defined(__SANITIZE_ADDRESS__)
    const void* caller_stack_ = nullptr;
    size_t caller_nbytes_ = 0;
#elif defined(__SANITIZE_THREAD__)
    void* sanitizer_fiber_ = nullptr;
    void* sanitizer_caller_ = nullptr;
#endif
};

}  // namespace warp_emulator
