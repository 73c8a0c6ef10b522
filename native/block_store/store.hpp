// A store for blobs that are written once, read back and freed (FlashNeuron, section 3.4): issue, update, is_done.
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

// Nothing persists. Any thread may call it: one lock guards everything, and is released while a thread waits for the
// device. `index` names a blob.
//
// Commands wait in two software queues, reads before writes, and go to the driver while it has room. Memory must stay
// valid until its command is done or the index is freed. After free() the caller may reuse it: a write in flight may
// still read from it, but that data is never read back.
class BlockStore {
  public:
    struct Failure {
        int error;
        bool write;
        unsigned device;
        uint64_t lba;     // of the command, on its device
        bool stuck;       // no system error: the device moved fewer bytes than asked, then none
        uint16_t status;  // the NVMe status, as in DeviceCompletion
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
        uint64_t retries;                  // commands sent again because their NVMe status allows it
        uint64_t doorbells, system_calls;  // counted by the driver
    };

    // `memory_alignment`: the alignment of memory that the devices can access; other memory goes through a bounce
    // buffer.
    BlockStore(std::unique_ptr<StoreDevices> devices, std::unique_ptr<StoreDriver> driver, uint64_t memory_alignment);
    ~BlockStore();
    BlockStore(const BlockStore&) = delete;
    BlockStore& operator=(const BlockStore&) = delete;

    // Queues a write of a new index, or a read of the first `nbytes` of an existing one (after its write, if that is in
    // flight). Throws std::invalid_argument for a write of an existing index or a read beyond its end,
    // std::out_of_range for a read of a missing index, SystemError if there is no room. The store is then unchanged.
    void issue(int64_t index, uint8_t* memory, uint64_t nbytes, bool write);
    // Submits while there is room, and reaps. Returns how many commands are queued or in flight.
    uint64_t update();
    // Whether all commands of this index are done, after an update if they were not. Sets `failure` if one failed.
    bool is_done(int64_t index, std::optional<Failure>& failure);
    // Those of the indices that have no pending command, after one update for all. Missing indices are among them.
    std::vector<int64_t> finished(const std::vector<int64_t>& indices);
    void wait(int64_t index, std::optional<Failure>& failure);
    void free(int64_t index);
    bool contains(int64_t index);
    // Lets the devices access this memory directly, until unmap() or the store's destruction: pinned host memory, or
    // mapped memory of another device. map() throws Refused if the driver cannot. unmap() waits for the commands that
    // use it.
    void map(uint8_t* memory, uint64_t nbytes);
    void unmap(uint8_t* memory);
    // Reads raw blocks of a device from `block` on, whatever index they belong to, and waits for that. Throws
    // std::out_of_range for a missing device.
    void peek(unsigned device, uint64_t block, uint8_t* memory, uint64_t nbytes, std::optional<Failure>& failure);
    // Writes raw blocks of a device from `block` on, durably by the drivers "nvme", "vfio" and "spdk", and waits for
    // that. The caller must use no index. Throws as peek() does.
    void poke(unsigned device, uint64_t block, const uint8_t* memory, uint64_t nbytes, std::optional<Failure>& failure);
    // The devices that the driver opened itself; empty if the caller opened them.
    std::vector<StoreDriver::Device> devices();
    // Drops queued commands, waits for those in flight, closes the devices. May be called twice.
    void close();

    // Starts a new trace, or ends it. It keeps the latest kMaxTraced commands.
    void set_recording(bool recording);
    std::vector<Traced> trace();
    Stats stats();
    // Unusual events so far, such as fallbacks and restarts, with their reasons.
    std::vector<std::string> notes();

  private:
    static constexpr size_t kMaxTraced = 1 << 16;  // of 1 MiB each: enough for an iteration of 64 GiB

    struct WaitingRead {
        uint8_t* memory;
        uint64_t nbytes;
    };

    // An entry of the metadata table. Commands keep it alive after its index is freed.
    struct Entry {
        uint64_t first = 0;
        uint64_t blocks = 0;
        uint64_t nbytes = 0;
        uint64_t pending = 0;    // commands queued or in flight
        uint64_t in_flight = 0;  // those of them with the driver
        bool writing = false;
        bool freed = false;
        std::optional<Failure> failure;
        std::vector<WaitingRead> reads;  // issued while the write was in flight
    };

    struct Command {
        std::shared_ptr<Entry> entry;
        bool write = false;
        bool bounced = false;
        bool durable = false;
        uint8_t* memory = nullptr;
        uint64_t payload = 0;  // bytes of the caller's memory
        uint64_t nbytes = 0;   // payload, rounded up to whole blocks
        StorePlace place{};
        uint64_t moved = 0;
        unsigned tries = 0;  // failed ones
        uint8_t* bounce = nullptr;
    };

    std::mutex mutex_;
    // One thread at a time sleeps in the driver; the others wait for it. While it sleeps no other thread reaps, or it
    // would sleep for a completion that is already taken.
    bool waiter_ = false;
    std::atomic<bool> asleep_{false};
    std::condition_variable woken_;
    std::unique_ptr<StoreDevices> devices_;
    std::unique_ptr<StoreDriver> driver_;
    uint64_t memory_alignment_;
    uint64_t largest_transfer_;
    long owner_;  // the process id: a forked child must not touch the parent's store
    bool closed_ = false;
    LbaAllocator allocator_;
    std::unique_ptr<Bounce> bounce_;  // created on first use; aligned tensors never need it
    std::unordered_map<int64_t, std::shared_ptr<Entry>> table_;
    std::deque<Command> reads_, writes_;
    std::vector<Command> slots_;
    std::vector<unsigned> free_slots_;
    std::map<uint8_t*, uint64_t> mapped_;  // memory mapped by map(): address -> bytes
    bool recording_ = false;
    std::deque<Traced> trace_;
    std::vector<std::string> notes_;
    Stats stats_{};

    void move_blocks(unsigned device, uint64_t block, uint8_t* memory, uint64_t nbytes, bool write,
                     std::optional<Failure>& failure);
    void check_owner() const;
    std::unique_lock<std::mutex> enter();
    const std::shared_ptr<Entry>& entry_of(int64_t index) const;
    Stats totals() const;
    std::vector<std::string> all_notes() const;
    bool is_in_use(const uint8_t* memory, uint64_t nbytes) const;
    uint64_t in_flight() const { return slots_.size() - free_slots_.size(); }
    void allocate(Entry& entry, uint64_t nbytes);
    void enqueue(const std::shared_ptr<Entry>& entry, uint8_t* memory, uint64_t nbytes, bool write);
    // Submits and reaps, without waiting.
    void pump();
    // The same, but if no completion was reaped, sleeps without the lock until there is one. Throws std::runtime_error
    // if the store was closed meanwhile.
    void wait_for_progress(std::unique_lock<std::mutex>& lock);
    void submit();
    bool is_reachable(const uint8_t* memory, uint64_t nbytes) const;
    uint8_t* take_bounce();
    void record(const Command& command);
    bool reap();
    void send(unsigned slot);
    void handle_completion(unsigned slot, const DeviceCompletion& completion);
    void finish(const Command& command);
    void drop_queued(const std::shared_ptr<Entry>& entry);
    void release(Entry& entry);
    // Drops queued commands and waits for those in flight, before the store is closed.
    void drain() noexcept;
};

}  // namespace fastio
