// Software queue -> driver. Every completion is one of three: an error, short (the rest is sent again), done.
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

// A blob this small with a partial last block goes through the bounce whole: one command instead of two.
constexpr uint64_t kSmall = 64 << 10;
constexpr unsigned kTries = 5;  // of a command that an NVMe controller says may be tried again, as the kernel does

}  // namespace

// Split at the largest transfer, at the end of a stripe, and before a partial last block.
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

void BlockStore::advance(std::unique_lock<std::mutex>& lock) {
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
    if (closed_) throw std::runtime_error("this block store was closed while it was waited for");
    if (refusal) std::rethrow_exception(refusal);
    pump();
}

void BlockStore::submit() {
    while (!free_slots_.empty()) {
        std::deque<Command>& queue = reads_.empty() ? writes_ : reads_;
        if (queue.empty()) break;
        Command& next = queue.front();
        if (next.entry->failure) {  // the rest of a blob that has failed is not worth the device's time
            Command skipped = std::move(next);
            queue.pop_front();
            finish(skipped);
            continue;
        }
        if (next.bounced) {
            if (next.write) driver_->flush();  // the device is at what was sent while the next is copied
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
    if (trace_.size() == kTraced) trace_.pop_front();
    trace_.push_back({command.write, command.place.device, command.place.block, command.nbytes / kStoreBlock});
}

void BlockStore::send(unsigned slot) {
    const Command& command = slots_[slot];
    uint8_t* memory = command.bounced ? command.bounce : command.memory;
    driver_->send({command.write, command.place.device, devices_->fd(command.place.device), memory + command.moved,
                   static_cast<uint32_t>(command.nbytes - command.moved),
                   command.place.block * kStoreBlock + command.moved, slot});
}

bool BlockStore::reap() {
    bool any = false;
    DeviceCompletion completion;
    while (driver_->reap(completion)) {
        settle(static_cast<unsigned>(completion.tag), completion);
        any = true;
    }
    return any;
}

void BlockStore::settle(unsigned slot, const DeviceCompletion& completion) {
    Command& command = slots_[slot];
    const int32_t result = completion.result;
    if (result == -EINTR || result == -EAGAIN) return send(slot);
    // The thread that submitted it has ended, as autograd's do; or the kernel finds no thread of its own for it.
    if (result == -ECANCELED && ++command.tries < kTries) return send(slot);
    if (completion.status != 0 && nvme_may_retry(completion.status) && ++command.tries < kTries) {
        ++stats_.retries;
        return send(slot);
    }
    bool stuck = false;
    if (result >= 0) {
        uint64_t moved = command.moved + static_cast<uint64_t>(result);
        if (moved < command.nbytes) {
            moved = moved / kStoreBlock * kStoreBlock;  // what is left must still be aligned
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

// One command less, whatever became of it. With a write's last one, the reads that waited for it may begin.
void BlockStore::finish(const Command& command) {
    Entry& entry = *command.entry;
    if (--entry.pending > 0) return;
    entry.writing = false;
    if (entry.freed) return release(entry);
    std::vector<Waiting> reads = std::move(entry.reads);
    entry.reads.clear();
    if (entry.failure) return;
    for (const Waiting& read : reads) enqueue(command.entry, read.memory, read.nbytes, false);
}

// Forget what of this entry is only queued.
void BlockStore::drop(const std::shared_ptr<Entry>& entry) {
    entry->reads.clear();
    if (entry->pending == entry->in_flight) return;
    for (std::deque<Command>* queue : {&reads_, &writes_}) {
        auto is_its = [&](const Command& command) { return command.entry == entry; };
        queue->erase(std::remove_if(queue->begin(), queue->end(), is_its), queue->end());
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
        sched_yield();  // completions arrive without asking, even on a ring that refuses calls
    }
    slots_.clear();
    free_slots_.clear();
}

}  // namespace fastio
