// The common base of the drivers over io_uring. They differ in what they send and how they read completions.
#pragma once

#include <cstdint>
#include <string>

#include "block_store/driver.hpp"
#include "io_engine/io_uring.hpp"

namespace fastio {

class RingDriver : public StoreDriver {
  public:
    std::string map_memory(uint8_t* memory, uint64_t nbytes) override {
        std::string refusal = ring_.register_memory(memory, nbytes);
        return refusal.empty() ? refusal : "io_uring does not register memory (" + refusal + ")";
    }

    void unmap_memory(uint8_t* memory) override { ring_.unregister_memory(memory); }

    void flush() override {
        if (ring_.queued() > 0) ring_.submit(0);
    }

    void wait() override { ring_.wait(); }
    unsigned unsent() const override { return ring_.queued(); }
    uint64_t system_calls() const override { return ring_.calls(); }

  protected:
    // kAnyThread, because forward and backward may run on different threads.
    explicit RingDriver(unsigned depth, Ring::Entries entries = Ring::Entries::kPlain)
        : ring_(depth, Ring::Issuers::kAnyThread, entries) {}

    Ring ring_;
};

}  // namespace fastio
