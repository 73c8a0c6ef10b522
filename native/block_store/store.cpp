// The metadata table and the public methods. queue.cpp moves the commands, memory.cpp handles memory.
#include "block_store/store.hpp"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "memory/memory.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

std::out_of_range missing(int64_t index) {
    return std::out_of_range("index " + std::to_string(index) + " is not in the block store");
}

}  // namespace

BlockStore::BlockStore(std::unique_ptr<StoreDevices> devices, std::unique_ptr<StoreDriver> driver,
                       uint64_t memory_alignment)
    : devices_(std::move(devices)),
      driver_(std::move(driver)),
      memory_alignment_(memory_alignment),
      largest_transfer_(driver_->largest_transfer()),
      owner_(getpid()),
      slots_(driver_->depth()) {
    for (unsigned slot = driver_->depth(); slot > 0; --slot) free_slots_.push_back(slot - 1);
}

BlockStore::~BlockStore() {
    if (getpid() != owner_) {
        // The driver's threads and ring belong to the parent: destroying them here would wait forever, or unmap memory
        // of something else.
        static_cast<void>(driver_.release());
        static_cast<void>(bounce_.release());  // not mapped in a child: see Bounce
        return;
    }
    drain();
    driver_.reset();  // before the memory that it maps is freed
    devices_->discard();
}

void BlockStore::check_owner() const {
    if (getpid() == owner_) return;
    throw std::runtime_error("this block store belongs to process " + std::to_string(owner_) +
                             ", which forked this one: open a new store here");
}

std::unique_lock<std::mutex> BlockStore::enter() {
    check_owner();  // before locking: a thread of the parent may have held the lock at the fork
    std::unique_lock<std::mutex> lock(mutex_);
    if (closed_) throw std::runtime_error("this block store is closed");
    return lock;
}

const std::shared_ptr<BlockStore::Entry>& BlockStore::entry_of(int64_t index) const {
    auto found = table_.find(index);
    if (found == table_.end()) throw missing(index);
    return found->second;
}

void BlockStore::issue(int64_t index, uint8_t* memory, uint64_t nbytes, bool write) {
    std::unique_lock<std::mutex> lock = enter();
    if (write) {
        if (table_.count(index) != 0) {
            throw std::invalid_argument("index " + std::to_string(index) + " is in the block store: free it first");
        }
        auto entry = std::make_shared<Entry>();
        allocate(*entry, nbytes);
        table_.emplace(index, entry);
        enqueue(entry, memory, nbytes, true);
        return;
    }
    const std::shared_ptr<Entry>& entry = entry_of(index);
    if (nbytes > entry->nbytes) {
        throw std::invalid_argument("cannot read " + std::to_string(nbytes) + " bytes of index " +
                                    std::to_string(index) + ", which has " + std::to_string(entry->nbytes));
    }
    if (entry->writing) {
        entry->reads.push_back({memory, nbytes});
    } else if (!entry->failure || !entry->failure->write) {
        entry->failure.reset();  // retry a failed read
        enqueue(entry, memory, nbytes, false);
    }
}

void BlockStore::allocate(Entry& entry, uint64_t nbytes) {
    entry.nbytes = nbytes;
    entry.blocks = (nbytes + kStoreBlock - 1) / kStoreBlock;
    if (entry.blocks == 0) return;
    std::optional<uint64_t> first = allocator_.allocate(entry.blocks);
    if (!first) {
        allocator_.provision(devices_->grow(allocator_.needed(entry.blocks)));
        first = allocator_.allocate(entry.blocks);
    }
    entry.first = first.value();
}

uint64_t BlockStore::update() {
    std::unique_lock<std::mutex> lock = enter();
    pump();
    return reads_.size() + writes_.size() + in_flight();
}

bool BlockStore::is_done(int64_t index, std::optional<Failure>& failure) {
    std::unique_lock<std::mutex> lock = enter();
    std::shared_ptr<Entry> entry = entry_of(index);
    if (entry->pending > 0) pump();
    if (entry->pending > 0) return false;
    failure = entry->failure;
    return true;
}

std::vector<int64_t> BlockStore::finished(const std::vector<int64_t>& indices) {
    std::unique_lock<std::mutex> lock = enter();
    pump();
    std::vector<int64_t> result;
    for (int64_t index : indices) {
        auto found = table_.find(index);
        if (found == table_.end() || found->second->pending == 0) result.push_back(index);
    }
    return result;
}

void BlockStore::wait(int64_t index, std::optional<Failure>& failure) {
    std::unique_lock<std::mutex> lock = enter();
    std::shared_ptr<Entry> entry = entry_of(index);
    while (entry->pending > 0) wait_for_progress(lock);
    failure = entry->failure;
}

void BlockStore::free(int64_t index) {
    std::unique_lock<std::mutex> lock = enter();
    std::shared_ptr<Entry> entry = entry_of(index);
    drop_queued(entry);
    // Wait for reads in flight, which would write into memory that the caller may reuse.
    while (entry->in_flight > 0 && !entry->writing) {
        wait_for_progress(lock);
        if (entry->freed) throw missing(index);  // another thread freed it
        drop_queued(entry);
    }
    table_.erase(index);
    entry->freed = true;
    if (entry->pending == 0) release(*entry);
}

bool BlockStore::contains(int64_t index) {
    std::unique_lock<std::mutex> lock = enter();
    return table_.count(index) != 0;
}

std::vector<StoreDriver::Device> BlockStore::devices() {
    std::unique_lock<std::mutex> lock = enter();
    return driver_->devices();
}

void BlockStore::peek(unsigned device, uint64_t block, uint8_t* memory, uint64_t nbytes,
                      std::optional<Failure>& failure) {
    move_blocks(device, block, memory, nbytes, false, failure);
}

void BlockStore::poke(unsigned device, uint64_t block, const uint8_t* memory, uint64_t nbytes,
                      std::optional<Failure>& failure) {
    move_blocks(device, block, const_cast<uint8_t*>(memory), nbytes, true, failure);  // a write only reads it
}

void BlockStore::move_blocks(unsigned device, uint64_t block, uint8_t* memory, uint64_t nbytes, bool write,
                             std::optional<Failure>& failure) {
    std::unique_lock<std::mutex> lock = enter();
    if (device >= devices_->count()) throw std::out_of_range("there is no device " + std::to_string(device));
    auto entry = std::make_shared<Entry>();
    const bool bounced = nbytes % kStoreBlock != 0 || !is_reachable(memory, nbytes);
    for (uint64_t done = 0; done < nbytes;) {
        Command command;
        command.entry = entry;
        command.write = command.durable = write;
        command.bounced = bounced;
        command.memory = memory + done;
        command.place = {device, block + done / kStoreBlock, 0};
        command.payload = std::min({nbytes - done, largest_transfer_, bounced ? Bounce::kSlice : nbytes});
        command.nbytes = round_up(command.payload, kStoreBlock);
        done += command.payload;
        (write ? writes_ : reads_).push_back(std::move(command));
        ++entry->pending;
    }
    while (entry->pending > 0) wait_for_progress(lock);
    failure = entry->failure;
}

void BlockStore::close() {
    check_owner();
    std::unique_lock<std::mutex> lock(mutex_);
    if (closed_) return;
    closed_ = true;
    woken_.wait(lock, [this] { return !waiter_; });
    drain();
    notes_ = all_notes();
    stats_ = totals();
    driver_.reset();
    bounce_.reset();
    devices_->discard();
    devices_->close();
}

void BlockStore::set_recording(bool recording) {
    std::unique_lock<std::mutex> lock = enter();
    recording_ = recording;
    trace_.clear();
}

std::vector<BlockStore::Traced> BlockStore::trace() {
    std::unique_lock<std::mutex> lock = enter();
    return {trace_.begin(), trace_.end()};
}

std::vector<std::string> BlockStore::notes() {
    check_owner();
    std::lock_guard<std::mutex> lock(mutex_);
    return all_notes();
}

BlockStore::Stats BlockStore::stats() {
    check_owner();
    std::lock_guard<std::mutex> lock(mutex_);  // a closed store keeps its statistics
    return totals();
}

std::vector<std::string> BlockStore::all_notes() const {
    std::vector<std::string> notes = notes_;
    if (!driver_) return notes;
    for (std::string& note : driver_->notes()) notes.push_back(std::move(note));
    return notes;
}

BlockStore::Stats BlockStore::totals() const {
    Stats stats = stats_;
    stats.bytes_used = allocator_.used() * kStoreBlock;
    stats.bytes_provisioned = allocator_.provisioned() * kStoreBlock;
    stats.commands_under_way = reads_.size() + writes_.size() + in_flight();
    if (!driver_) return stats;
    stats.doorbells = driver_->doorbells();
    stats.system_calls = driver_->system_calls();
    return stats;
}

}  // namespace fastio
