// Moves commands from the software queues to the driver and handles completions: an error, a short transfer (the rest
// is sent again), or done.
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "block_store/store.hpp"
#include "memory/memory.hpp"
#include "nvme/status.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

// A blob up to this size with a partial last block goes through the bounce buffer entirely: one command, not two.
constexpr uint64_t kSmall = 64 << 10;
constexpr unsigned kMaxTries = 5;  // of a command that may be retried; the kernel, too, tries five times

}  // namespace

// Splits a transfer into commands: at the largest transfer, at the end of a stripe, and before a partial last block.
void BlockStore::enqueue(const std::shared_ptr<Entry>& entry, uint8_t* memory, uint64_t nbytes, bool write) {
    bool bounce_all = !is_reachable(memory, nbytes) || (nbytes <= kSmall && nbytes % kStoreBlock != 0);
    uint64_t whole = bounce_all ? 0 : nbytes / kStoreBlock * kStoreBlock;
    std::deque<Command>& queue = write ? writes_ : reads_;
    for (uint64_t done = 0; done < nbytes;) {
        Command command;
        command.entry = entry;
        command.write = write;
        command.bounced = done >= whole;
        command.memory = memory + done;
        command.place = devices_->locate(entry->first + done / kStoreBlock);
        uint64_t most = std::min(largest_transfer_, command.place.contiguous * kStoreBlock);
        if (command.bounced) most = std::min(most, Bounce::kSlice);
        command.payload = std::min(most, (command.bounced ? nbytes : whole) - done);
        command.nbytes = round_up(command.payload, kStoreBlock);
        done += command.payload;
        queue.push_back(std::move(command));
        ++entry->pending;
    }
    entry->writing = write && entry->pending > 0;
}

void BlockStore::pump() {
    submit();
    if (!asleep_ && reap()) submit();
}

void BlockStore::wait_for_progress(std::unique_lock<std::mutex>& lock) {
    submit();
    if (!asleep_ && reap()) return submit();
    if (in_flight() == 0) return;
    std::exception_ptr refusal;
    if (waiter_) {
        woken_.wait(lock);
    } else {
        waiter_ = true;
        asleep_ = true;
        lock.unlock();
        try {
            driver_->wait();
        } catch (...) {
            refusal = std::current_exception();
        }
        asleep_ = false;
        lock.lock();
        waiter_ = false;
        woken_.notify_all();
    }
    if (closed_) throw std::runtime_error("this block store was closed during a wait for it");
    if (refusal) std::rethrow_exception(refusal);
    pump();
}

void BlockStore::submit() {
    while (!free_slots_.empty()) {
        std::deque<Command>& queue = reads_.empty() ? writes_ : reads_;
        if (queue.empty()) break;
        Command& next = queue.front();
        if (next.entry->failure) {  // skip the rest of a blob that failed
            Command skipped = std::move(next);
            queue.pop_front();
            finish(skipped);
            continue;
        }
        if (next.bounced) {
            if (next.write) driver_->flush();  // the device works on the sent commands during the copy
            next.bounce = take_bounce();
            if (next.bounce == nullptr) break;
            if (next.write) {
                std::memcpy(next.bounce, next.memory, next.payload);
                std::memset(next.bounce + next.payload, 0, next.nbytes - next.payload);
                stats_.bytes_bounced += next.payload;
            }
        }
        unsigned slot = free_slots_.back();
        free_slots_.pop_back();
        slots_[slot] = std::move(next);
        queue.pop_front();
        const Command& command = slots_[slot];
        ++command.entry->in_flight;
        if (recording_) record(command);
        ++(command.write ? stats_.commands_written : stats_.commands_read);
        send(slot);
    }
    driver_->flush();
}

void BlockStore::record(const Command& command) {
    if (trace_.size() == kMaxTraced) trace_.pop_front();
    trace_.push_back({command.write, command.place.device, command.place.block, command.nbytes / kStoreBlock});
}

void BlockStore::send(unsigned slot) {
    const Command& command = slots_[slot];
    uint8_t* memory = command.bounced ? command.bounce : command.memory;
    driver_->send({command.write, command.place.device, devices_->fd(command.place.device), memory + command.moved,
                   static_cast<uint32_t>(command.nbytes - command.moved),
                   command.place.block * kStoreBlock + command.moved, slot, command.durable});
}

bool BlockStore::reap() {
    bool any = false;
    DeviceCompletion completion;
    while (driver_->reap(completion)) {
        handle_completion(static_cast<unsigned>(completion.tag), completion);
        any = true;
    }
    return any;
}

void BlockStore::handle_completion(unsigned slot, const DeviceCompletion& completion) {
    Command& command = slots_[slot];
    const int32_t result = completion.result;
    if (result == -EINTR || result == -EAGAIN) return send(slot);
    // The submitting thread has ended, as autograd's threads do, or the kernel could not start a worker thread.
    if (result == -ECANCELED && ++command.tries < kMaxTries) return send(slot);
    if (completion.status != 0 && nvme_may_retry(completion.status) && ++command.tries < kMaxTries) {
        ++stats_.retries;
        return send(slot);
    }
    bool stuck = false;
    if (result >= 0) {
        uint64_t moved = command.moved + static_cast<uint64_t>(result);
        if (moved < command.nbytes) {
            moved = moved / kStoreBlock * kStoreBlock;  // the rest must still be aligned
            stuck = moved <= command.moved;
        }
        (command.write ? stats_.bytes_written : stats_.bytes_read) += moved - command.moved;
        command.moved = moved;
        if (moved < command.nbytes && !stuck) return send(slot);
    }
    if ((result < 0 || stuck) && !command.entry->failure) {
        command.entry->failure = Failure{stuck ? EIO : -result,
                                         command.write,
                                         command.place.device,
                                         command.place.block + command.moved / kStoreBlock,
                                         stuck,
                                         completion.status};
    }
    if (command.bounced && !command.write && result >= 0 && !stuck) {
        std::memcpy(command.memory, command.bounce, command.payload);
        stats_.bytes_bounced += command.payload;
    }
    if (command.bounced) bounce_->give_back(command.bounce);
    Command finished = std::move(command);
    free_slots_.push_back(slot);
    --finished.entry->in_flight;
    finish(finished);
}

// Counts a command as done or failed. The last command of a write starts the reads that waited for it.
void BlockStore::finish(const Command& command) {
    Entry& entry = *command.entry;
    if (--entry.pending > 0) return;
    entry.writing = false;
    if (entry.freed) return release(entry);
    std::vector<WaitingRead> reads = std::move(entry.reads);
    entry.reads.clear();
    if (entry.failure) return;
    for (const WaitingRead& read : reads) enqueue(command.entry, read.memory, read.nbytes, false);
}

// Drops the commands of this entry that are queued and not in flight.
void BlockStore::drop_queued(const std::shared_ptr<Entry>& entry) {
    entry->reads.clear();
    if (entry->pending == entry->in_flight) return;
    for (std::deque<Command>* queue : {&reads_, &writes_}) {
        auto belongs = [&](const Command& command) { return command.entry == entry; };
        queue->erase(std::remove_if(queue->begin(), queue->end(), belongs), queue->end());
    }
    entry->pending = entry->in_flight;
}

void BlockStore::release(Entry& entry) {
    if (entry.blocks > 0) allocator_.free(entry.first, entry.blocks);
    entry.blocks = 0;
}

void BlockStore::drain() noexcept {
    reads_.clear();
    writes_.clear();
    if (!driver_) return;
    while (in_flight() > driver_->unsent()) {
        DeviceCompletion completion;
        while (driver_->reap(completion)) {
            auto slot = static_cast<unsigned>(completion.tag);
            uint64_t moved = completion.result > 0 ? static_cast<uint64_t>(completion.result) : 0;
            (slots_[slot].write ? stats_.bytes_written : stats_.bytes_read) += moved;
            free_slots_.push_back(slot);
        }
        sched_yield();  // the kernel posts completions even on a ring whose system calls fail
    }
    slots_.clear();
    free_slots_.clear();
}

}  // namespace fastio
