// What the drivers over an io_uring have in common: all but what they send and how they understand the answers.
#pragma once

#include <cstdint>
#include <string>

#include "block_store/driver.hpp"
#include "transfer/io_uring.hpp"

namespace fastio {

class RingDriver : public StoreDriver {
  public:
    std::string adopt(uint8_t* memory, uint64_t nbytes) override {
        std::string refusal = ring_.register_memory(memory, nbytes);
        return refusal.empty() ? refusal : "io_uring does not register memory (" + refusal + ")";
    }

    void disown(uint8_t* memory) override { ring_.unregister_memory(memory); }

    void flush() override {
        if (ring_.queued() > 0) ring_.submit(0);
    }

    void wait() override { ring_.wait(); }
    unsigned unsent() const override { return ring_.queued(); }
    uint64_t system_calls() const override { return ring_.calls(); }

  protected:
    // Forward and backward may run on different threads.
    explicit RingDriver(unsigned depth, Ring::Entries entries = Ring::Entries::kPlain)
        : ring_(depth, Ring::Issuers::kAnyThread, entries) {}

    Ring ring_;
};

}  // namespace fastio
