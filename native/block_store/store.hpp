// A place to write once, read back and forget (FlashNeuron, section 3.4): issue, update, is_done.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "block_store/bounce.hpp"
#include "block_store/devices.hpp"
#include "block_store/driver.hpp"
#include "block_store/lba.hpp"

namespace fastio {

// Nothing of it is persisted. Any thread may call it; one lock holds all of it together, but not while a thread waits
// for the device. `index` names a blob.
//
// Commands wait in two software queues, reads before writes, and go to the driver while it has room. Memory must stay
// until its command is done or the index is freed; after free() it is the caller's again (a write that the device is
// at may still read from it, and what it read is forgotten).
class BlockStore {
  public:
    struct Failure {
        int error;
        bool write;
        unsigned device;
        uint64_t lba;     // of the command, on its device
        bool stuck;       // no error of the system: the device moved fewer bytes than asked, and then none
        uint16_t status;  // NVMe's, as in DeviceCompletion
    };

    struct Traced {
        bool write;
        unsigned device;
        uint64_t lba;
        uint64_t blocks;
    };

    struct Stats {
        uint64_t bytes_written, bytes_read, bytes_bounced;
        uint64_t commands_written, commands_read;
        uint64_t bytes_used, bytes_provisioned, commands_under_way;
        uint64_t retries;                  // commands sent again because NVMe said that it may help
        uint64_t doorbells, system_calls;  // as the driver counts them
    };

    // `memory_alignment`: of addresses that the devices can reach; other memory goes through a bounce.
    BlockStore(std::unique_ptr<StoreDevices> devices, std::unique_ptr<StoreDriver> driver, uint64_t memory_alignment);
    ~BlockStore();
    BlockStore(const BlockStore&) = delete;
    BlockStore& operator=(const BlockStore&) = delete;

    // Queue a write of a new index, or a read of the first `nbytes` of an old one (after its write, if that is under
    // way). Throws std::invalid_argument for an index that is there already or a read beyond its end,
    // std::out_of_range for one that is not there, SystemError where there is no room: the store stays as it was.
    void issue(int64_t index, uint8_t* memory, uint64_t nbytes, bool write);
    // Submit while there is room, reap, set done bits. Gives how many commands are under way.
    uint64_t update();
    // Whether nothing of this index is under way, after an update if need be; then, how it failed if it did.
    bool is_done(int64_t index, std::optional<Failure>& failure);
    void wait(int64_t index, std::optional<Failure>& failure);
    void free(int64_t index);
    bool contains(int64_t index);
    // Let the devices reach this memory as it lies, until unmap() or the store's end: pinned host memory, or another
    // device's that is mapped here. map() throws Refused where the driver cannot; unmap() waits for what uses it.
    void map(uint8_t* memory, uint64_t nbytes);
    void unmap(uint8_t* memory);
    // Read what lies at `block` of a device, whoever's it is; returns when that is done. Throws std::out_of_range for a
    // device that is not there.
    void peek(unsigned device, uint64_t block, uint8_t* memory, uint64_t nbytes, std::optional<Failure>& failure);
    // What the driver knows of its devices; none: it uses what the caller opened.
    std::vector<StoreDriver::Device> devices();
    // Drop what is queued, wait for what is in flight, close the devices. Twice is fine.
    void close();

    // Begin a new trace, or end it. It keeps the latest kTraced commands.
    void set_recording(bool recording);
    std::vector<Traced> trace();
    Stats stats();
    // What did not go the usual way since the store was made.
    std::vector<std::string> notes();

  private:
    static constexpr size_t kTraced = 1 << 16;  // of 1 MiB each: an iteration of 64 GiB

    struct Waiting {
        uint8_t* memory;
        uint64_t nbytes;
    };

    // A row of the metadata table. Commands keep it alive when its index is freed.
    struct Entry {
        uint64_t first = 0;
        uint64_t blocks = 0;
        uint64_t nbytes = 0;
        uint64_t pending = 0;    // commands queued or in flight
        uint64_t in_flight = 0;  // of these, with the driver
        bool writing = false;
        bool freed = false;
        std::optional<Failure> failure;
        std::vector<Waiting> reads;  // issued while it was still being written
    };

    struct Command {
        std::shared_ptr<Entry> entry;
        bool write = false;
        bool bounced = false;
        uint8_t* memory = nullptr;
        uint64_t payload = 0;  // bytes of the caller's memory
        uint64_t nbytes = 0;   // the same in whole blocks
        StorePlace place{};
        uint64_t moved = 0;
        unsigned tries = 0;  // that failed
        uint8_t* bounce = nullptr;
    };

    std::mutex mutex_;
    // One thread at a time sleeps at the device, for all who wait. While it is asleep nobody else reaps: it might then
    // sleep for a completion that is gone.
    bool waiter_ = false;
    std::atomic<bool> asleep_{false};
    std::condition_variable woken_;
    std::unique_ptr<StoreDevices> devices_;
    std::unique_ptr<StoreDriver> driver_;
    uint64_t memory_alignment_;
    uint64_t largest_transfer_;
    long owner_;  // the process: a child of fork must leave the parent's store alone
    bool closed_ = false;
    LbaAllocator allocator_;
    std::unique_ptr<Bounce> bounce_;  // made when the first command needs it: aligned tensors never do
    std::unordered_map<int64_t, std::shared_ptr<Entry>> table_;
    std::deque<Command> reads_, writes_;
    std::vector<Command> slots_;
    std::vector<unsigned> free_slots_;
    std::map<uint8_t*, uint64_t> mapped_;  // by map(): address -> bytes
    bool recording_ = false;
    std::deque<Traced> trace_;
    std::vector<std::string> notes_;
    Stats stats_{};

    void check_owner() const;
    std::unique_lock<std::mutex> enter();
    const std::shared_ptr<Entry>& entry_of(int64_t index) const;
    Stats totals() const;
    std::vector<std::string> all_notes() const;
    bool is_in_use(const uint8_t* memory, uint64_t nbytes) const;
    uint64_t in_flight() const { return slots_.size() - free_slots_.size(); }
    void allocate(Entry& entry, uint64_t nbytes);
    void enqueue(const std::shared_ptr<Entry>& entry, uint8_t* memory, uint64_t nbytes, bool write);
    void pump();
    // The same, and where nothing was done, sleep without the lock until something is. Throws std::runtime_error where
    // the store was closed meanwhile.
    void advance(std::unique_lock<std::mutex>& lock);
    void submit();
    bool is_reachable(const uint8_t* memory, uint64_t nbytes) const;
    uint8_t* take_bounce();
    void record(const Command& command);
    bool reap();
    void send(unsigned slot);
    void settle(unsigned slot, const DeviceCompletion& completion);
    void finish(const Command& command);
    void drop(const std::shared_ptr<Entry>& entry);
    void release(Entry& entry);
    // The end: what is queued is dropped, what is in flight waited for.
    void drain() noexcept;
};

}  // namespace fastio
