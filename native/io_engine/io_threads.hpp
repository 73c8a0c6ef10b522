// An I/O engine of threads, each with one blocking request at a time, for where io_uring is forbidden.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "io_engine/io_engine.hpp"

namespace fastio {

class IoThreads final : public IoEngine {
  public:
    // Starts up to `threads` threads, fewer if the system has no more. Throws Refused if it has none.
    explicit IoThreads(unsigned threads);
    // Finishes all queued requests first.
    ~IoThreads() override;
    IoThreads(const IoThreads&) = delete;

    void queue(bool write, int fd, void* memory, uint32_t nbytes, uint64_t offset, uint64_t tag) override;
    void submit(unsigned wait) override;
    unsigned queued() const override { return 0; }
    bool reap(Completion& completion) override;

  private:
    struct Request {
        bool write;
        int fd;
        void* memory;
        uint32_t nbytes;
        uint64_t offset, tag;
    };

    std::mutex mutex_;
    std::condition_variable wanted_, finished_;
    std::deque<Request> requests_;
    std::deque<Completion> completions_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;  // declared last: they use all members above

    void work();
};

}  // namespace fastio
