#include "transfer/block_queue.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "io_engine/io_threads.hpp"
#include "io_engine/io_uring.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

constexpr uint64_t kMaxRequestBytes = 1ULL << 30;  // one request moves less than 2 GiB

std::unique_ptr<IoEngine> make_engine(unsigned depth, unsigned threads) {
    if (threads > 0) return std::make_unique<IoThreads>(std::min(threads, depth));
    return std::make_unique<Ring>(depth);
}

}  // namespace

BlockQueue::BlockQueue(bool write, int fd, unsigned depth, uint64_t alignment, unsigned threads)
    : write_(write), fd_(fd), alignment_(alignment), engine_(make_engine(depth, threads)), blocks_(depth) {
    for (unsigned slot = depth; slot > 0; --slot) free_.push_back(slot - 1);
}

BlockQueue::~BlockQueue() { drain(); }

void BlockQueue::send(const Block& block) {
    unsigned slot = free_.back();
    free_.pop_back();
    blocks_[slot] = block;
    ++in_flight_;
    resend(slot);
}

void BlockQueue::resend(unsigned slot) {
    const Block& block = blocks_[slot];
    uint64_t left = std::min(block.nbytes - block.moved, kMaxRequestBytes);
    engine_->queue(write_, fd_, block.memory + block.moved, static_cast<uint32_t>(left), block.offset + block.moved,
                   slot);
}

// Transfers the rest of the block with a blocking call. Used for -ECANCELED: the kernel needed a worker thread and
// could not start one, because the user or the container has reached its process limit. Returns what a completion would
// hold.
int32_t BlockQueue::transfer_on_this_thread(const Block& block) const {
    uint8_t* memory = block.memory + block.moved;
    auto left = static_cast<size_t>(std::min(block.nbytes - block.moved, kMaxRequestBytes));
    auto offset = static_cast<off_t>(block.offset + block.moved);
    ssize_t moved = write_ ? ::pwrite(fd_, memory, left, offset) : ::pread(fd_, memory, left, offset);
    return moved < 0 ? -errno : static_cast<int32_t>(moved);
}

// Returns true when the block is complete. Throws on an error; the block is then no longer in flight.
bool BlockQueue::handle_completion(unsigned slot, int32_t result) {
    Block& block = blocks_[slot];
    if (result == -ECANCELED) result = transfer_on_this_thread(block);
    if (result == -EINTR || result == -EAGAIN) {
        resend(slot);
        return false;
    }
    const char* operation = write_ ? "write" : "read";
    uint64_t at = block.offset + block.moved;
    if (result > 0) {
        block.moved += static_cast<uint64_t>(result);
        if (block.moved >= block.needed) return true;
        // The device takes the rest only from an aligned offset.
        if (static_cast<uint64_t>(result) % alignment_ == 0) {
            resend(slot);
            return false;
        }
    }
    free_.push_back(slot);
    --in_flight_;
    if (result == -EINVAL || result == -EOPNOTSUPP) throw Refused(std::string("direct ") + operation + " was refused");
    if (result < 0) throw SystemError(-result, operation, at);
    if (!write_) throw Truncated(block.offset + block.moved);
    throw SystemError(EIO, operation, at);
}

Block BlockQueue::receive(unsigned& slot) {
    engine_->submit(0);
    for (;;) {
        IoEngine::Completion completion;
        while (engine_->reap(completion)) {
            slot = static_cast<unsigned>(completion.tag);
            try {
                if (!handle_completion(slot, completion.result)) continue;
                free_.push_back(slot);
                --in_flight_;
                if (!failure_) return blocks_[slot];
            } catch (...) {
                if (!failure_ || blocks_[slot].offset < failure_offset_) {
                    failure_ = std::current_exception();
                    failure_offset_ = blocks_[slot].offset;
                }
            }
        }
        if (failure_ && in_flight_ == 0) std::rethrow_exception(failure_);
        engine_->submit(1);
    }
}

void BlockQueue::drain() noexcept {
    // Requests that were queued but never submitted are dropped: the kernel does not know them.
    while (in_flight_ > engine_->queued()) {
        IoEngine::Completion completion;
        while (engine_->reap(completion)) --in_flight_;
        sched_yield();  // the kernel posts completions even on a ring whose system calls fail
    }
    in_flight_ = 0;
}

}  // namespace fastio
