#include "transfer/block_queue.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "support/errors.hpp"
#include "transfer/io_threads.hpp"
#include "transfer/io_uring.hpp"

namespace fastio {

namespace {

constexpr uint64_t kLargestTransfer = 1ULL << 30;  // one request moves less than 2 GiB

std::unique_ptr<Engine> make_engine(unsigned depth, unsigned threads) {
    if (threads > 0) return std::make_unique<IoThreads>(std::min(threads, depth));
    return std::make_unique<Ring>(depth);
}

}  // namespace

Queue::Queue(bool write, int fd, unsigned depth, uint64_t alignment, unsigned threads)
    : write_(write), fd_(fd), alignment_(alignment), engine_(make_engine(depth, threads)), blocks_(depth) {
    for (unsigned slot = depth; slot > 0; --slot) free_.push_back(slot - 1);
}

Queue::~Queue() { drain(); }

void Queue::send(const Block& block) {
    unsigned slot = free_.back();
    free_.pop_back();
    blocks_[slot] = block;
    ++in_flight_;
    resend(slot);
}

void Queue::resend(unsigned slot) {
    const Block& block = blocks_[slot];
    uint64_t left = std::min(block.nbytes - block.moved, kLargestTransfer);
    engine_->queue(write_, fd_, block.memory + block.moved, static_cast<uint32_t>(left), block.offset + block.moved,
                   slot);
}

// Moves what the kernel wanted a thread of its own for, and had none: the limit of processes (of the user, or of the
// container) is reached. Gives what a completion would.
int32_t Queue::move_here(const Block& block) const {
    uint8_t* memory = block.memory + block.moved;
    auto left = static_cast<size_t>(std::min(block.nbytes - block.moved, kLargestTransfer));
    auto offset = static_cast<off_t>(block.offset + block.moved);
    ssize_t moved = write_ ? ::pwrite(fd_, memory, left, offset) : ::pread(fd_, memory, left, offset);
    return moved < 0 ? -errno : static_cast<int32_t>(moved);
}

// True when the block is whole. Throws for an error; the block is then no longer in flight.
bool Queue::settle(unsigned slot, int32_t result) {
    Block& block = blocks_[slot];
    if (result == -ECANCELED) result = move_here(block);
    if (result == -EINTR || result == -EAGAIN) {
        resend(slot);
        return false;
    }
    const char* operation = write_ ? "write" : "read";
    uint64_t at = block.offset + block.moved;
    if (result > 0) {
        block.moved += static_cast<uint64_t>(result);
        if (block.moved >= block.needed) return true;
        // What is left must still be aligned for the device.
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

Block Queue::receive(unsigned& slot) {
    engine_->submit(0);
    for (;;) {
        Engine::Completion completion;
        while (engine_->reap(completion)) {
            slot = static_cast<unsigned>(completion.tag);
            try {
                if (!settle(slot, completion.result)) continue;
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

void Queue::drain() noexcept {
    // What was queued but never handed over is no concern: the kernel does not know of it.
    while (in_flight_ > engine_->queued()) {
        Engine::Completion completion;
        while (engine_->reap(completion)) --in_flight_;
        sched_yield();  // completions arrive without asking, even on a ring that refuses calls
    }
    in_flight_ = 0;
}

}  // namespace fastio
