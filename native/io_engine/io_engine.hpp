// The interface of an engine that keeps many reads and writes in flight: io_uring, or threads where that is forbidden.
#pragma once

#include <cstdint>

namespace fastio {

class IoEngine {
  public:
    struct Completion {
        uint64_t tag;
        int32_t result;  // bytes moved, or a negative errno
    };

    virtual ~IoEngine() = default;

    // Queues a read or write.
    virtual void queue(bool write, int fd, void* memory, uint32_t nbytes, uint64_t offset, uint64_t tag) = 0;
    // Submits all queued requests and waits for at least `wait` completions. Throws Refused if the engine stopped
    // working; the requests that are still queued are then never submitted.
    virtual void submit(unsigned wait) = 0;
    // The number of requests that are queued and not yet submitted.
    virtual unsigned queued() const = 0;
    // Takes one completion. Returns false if there is none.
    virtual bool reap(Completion& completion) = 0;
};

}  // namespace fastio
