// What reads and writes a file, many requests at a time: io_uring, or threads where that is forbidden.
#pragma once

#include <cstdint>

namespace fastio {

class Engine {
  public:
    struct Completion {
        uint64_t tag;
        int32_t result;  // bytes moved, or an errno below 0
    };

    virtual ~Engine() = default;

    // Queue a read or write.
    virtual void queue(bool write, int fd, void* memory, uint32_t nbytes, uint64_t offset, uint64_t tag) = 0;
    // Hand over all that is queued and wait for at least `wait` completions. Throws Refused where the engine has
    // stopped working; what was not handed over then never will be.
    virtual void submit(unsigned wait) = 0;
    // How many requests are queued and not yet handed over.
    virtual unsigned queued() const = 0;
    // Take one completion; false if there is none.
    virtual bool reap(Completion& completion) = 0;
};

}  // namespace fastio
