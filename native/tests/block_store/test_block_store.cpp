// Tests random operations on a block store against a simple table, with both file drivers and a faulty one.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "block_store/store.hpp"
#include "support/errors.hpp"
#include "tests/support/check.hpp"
#include "tests/support/unnamed_file.hpp"

namespace {

using fastio::BlockStore;
using fastio::kStoreBlock;

std::mt19937_64 random_source(11);

uint64_t pick(uint64_t low, uint64_t high) { return low + random_source() % (high - low + 1); }

// Completes in any order, often with short transfers or errors: covers all cases of BlockStore::handle_completion().
class FaultyDriver final : public fastio::StoreDriver {
  public:
    explicit FaultyDriver(unsigned errors_in_100) : errors_in_100_(errors_in_100) {}
    unsigned depth() const override { return 5; }
    std::string map_memory(uint8_t*, uint64_t) override { return pick(0, 1) == 0 ? "" : "not today"; }
    void send(const fastio::DeviceCommand& command) override { sent_.push_back(command); }
    void flush() override {}
    void wait() override {}
    unsigned unsent() const override { return 0; }

    bool reap(fastio::DeviceCompletion& completion) override {
        if (sent_.empty() || pick(0, 3) == 0) return false;
        size_t number = pick(0, sent_.size() - 1);
        fastio::DeviceCommand command = sent_[number];
        sent_.erase(sent_.begin() + static_cast<long>(number));
        completion = {command.tag, answer(command)};
        return true;
    }

  private:
    unsigned errors_in_100_;
    std::vector<fastio::DeviceCommand> sent_;

    int32_t answer(const fastio::DeviceCommand& command) const {
        if (pick(1, 100) <= errors_in_100_) return pick(0, 1) == 0 ? -EIO : 0;
        if (pick(0, 9) == 0) return pick(0, 1) == 0 ? -EAGAIN : -ECANCELED;
        uint64_t nbytes = pick(0, 2) == 0 ? pick(kStoreBlock, command.nbytes) : command.nbytes;
        auto offset = static_cast<off_t>(command.offset);
        return static_cast<int32_t>(command.write ? pwrite(command.fd, command.memory, nbytes, offset)
                                                  : pread(command.fd, command.memory, nbytes, offset));
    }
};

// Moves no data, and sleeps in wait() until the test opens the gate: a device of controlled slowness.
class GatedDriver final : public fastio::StoreDriver {
  public:
    struct Gate {
        std::mutex mutex;
        std::condition_variable moved;
        bool open = false;
        int asleep = 0;
    };

    explicit GatedDriver(Gate& gate) : gate_(gate) {}
    unsigned depth() const override { return 4; }
    std::string map_memory(uint8_t*, uint64_t) override { return {}; }
    void send(const fastio::DeviceCommand& command) override { sent_.push_back(command); }
    void flush() override {}
    unsigned unsent() const override { return 0; }

    void wait() override {
        std::unique_lock<std::mutex> lock(gate_.mutex);
        CHECK(++gate_.asleep == 1, "only one thread sleeps in the driver");
        gate_.moved.notify_all();
        gate_.moved.wait(lock, [this] { return gate_.open; });
        --gate_.asleep;
    }

    bool reap(fastio::DeviceCompletion& completion) override {
        std::lock_guard<std::mutex> lock(gate_.mutex);
        if (sent_.empty() || !gate_.open) return false;
        completion = {sent_.back().tag, static_cast<int32_t>(sent_.back().nbytes)};
        sent_.pop_back();
        return true;
    }

  private:
    Gate& gate_;
    std::vector<fastio::DeviceCommand> sent_;
};

struct Blob {
    std::vector<uint8_t> data;
    bool failed = false;
};

constexpr uint64_t kLimit = 3 << 20;

std::unique_ptr<BlockStore> make(std::unique_ptr<fastio::StoreDriver> driver, size_t devices) {
    std::vector<fastio::StoreDevices::Device> list;
    for (size_t number = 0; number < devices; ++number) list.push_back({unnamed_file(), 0});
    auto owned = std::make_unique<fastio::StoreDevices>(std::move(list), kLimit / kStoreBlock);
    return std::make_unique<BlockStore>(std::move(owned), std::move(driver), 64);
}

// Reads a blob and checks the data. Returns false if the read failed.
bool fetch(BlockStore& store, int64_t index, const Blob& blob) {
    std::vector<uint8_t> got(pick(0, blob.data.size()));
    std::optional<BlockStore::Failure> failure;
    store.issue(index, got.data(), got.size(), false);
    store.wait(index, failure);
    if (failure) return false;
    CHECK(std::equal(got.begin(), got.end(), blob.data.begin()), "index %ld reads back unchanged", long(index));
    return true;
}

// Returns the number of failed transfers.
int any_order(BlockStore& store, int steps) {
    std::map<int64_t, Blob> blobs;
    std::vector<std::vector<uint8_t>> freed;  // memory that writes in flight may still use
    int failures = 0;
    for (int step = 0; step < steps; ++step) {
        auto index = static_cast<int64_t>(pick(0, 9));
        auto found = blobs.find(index);
        if (found == blobs.end()) {
            Blob blob;
            blob.data.resize(pick(0, 2) == 0 ? pick(0, 3 * kStoreBlock) : pick(0, 1 << 20));
            for (uint8_t& byte : blob.data) byte = static_cast<uint8_t>(random_source());
            uint8_t* memory = blob.data.data();
            uint64_t nbytes = blob.data.size();
            blobs.emplace(index, std::move(blob));
            try {
                store.issue(index, memory, nbytes, true);
            } catch (const fastio::SystemError& error) {
                CHECK(error.error == ENOSPC, "the error is ENOSPC, not errno %d", error.error);
                CHECK(!store.contains(index), "a write without room leaves no index");
                blobs.erase(index);
            }
        } else if (pick(0, 2) == 0) {
            store.free(index);
            freed.push_back(std::move(found->second.data));
            blobs.erase(found);
        } else if (pick(0, 1) == 0) {
            failures += fetch(store, index, found->second) ? 0 : 1;
        } else {
            store.update();
        }
    }
    while (store.update() > 0) {
    }
    for (auto& [index, blob] : blobs) {
        failures += fetch(store, index, blob) ? 0 : 1;
        store.free(index);
    }
    while (store.update() > 0) {
    }
    CHECK(store.stats().bytes_used == 0, "no bytes are used at the end, not %lu",
          (unsigned long)store.stats().bytes_used);
    return failures;
}

void test_closing_with_commands_in_flight(const char* driver) {
    std::vector<uint8_t> data(1 << 20, 7);
    auto store = make(fastio::make_store_driver(driver), 1);
    store->issue(0, data.data(), data.size(), true);
    store->issue(1, data.data() + 1, data.size() - 1, true);
    store->update();
    store->close();
    store->close();
}

// A waiting thread blocks no call of other threads, and all waiting threads are woken.
void test_waiting_blocks_no_other_thread() {
    GatedDriver::Gate gate;
    std::vector<uint8_t> data(64 << 10, 7);
    auto store = make(std::make_unique<GatedDriver>(gate), 1);
    for (int64_t index = 0; index < 6; ++index) store->issue(index, data.data(), data.size(), true);
    auto waiting = [&](int64_t index) {
        std::optional<BlockStore::Failure> failure;
        store->wait(index, failure);
        CHECK(!failure, "index %ld succeeds", long(index));
    };
    std::thread sleeper(waiting, 0);
    {
        std::unique_lock<std::mutex> lock(gate.mutex);
        gate.moved.wait(lock, [&] { return gate.asleep == 1; });
    }
    // Each of these would hang if the sleeper kept the lock.
    std::optional<BlockStore::Failure> failure;
    store->issue(6, data.data(), data.size(), true);
    CHECK(store->update() == 7, "7 commands are queued or in flight");
    CHECK(!store->is_done(6, failure), "a command is not done while the gate is closed");
    CHECK(store->contains(6) && store->stats().commands_under_way == 7, "contains() and stats() do not block");
    store->free(5);
    std::vector<std::thread> more;
    for (int64_t index : {1, 2, 3, 6}) more.emplace_back(waiting, index);
    {
        std::lock_guard<std::mutex> lock(gate.mutex);
        gate.open = true;
    }
    gate.moved.notify_all();
    sleeper.join();
    for (std::thread& thread : more) thread.join();
    while (store->update() > 0) {
    }
    for (int64_t index : {0, 1, 2, 3, 4, 6}) store->free(index);
    CHECK(store->stats().bytes_used == 0, "no bytes are used at the end, not %lu",
          (unsigned long)store->stats().bytes_used);
}

// Closing while a thread waits: the thread gets an error before the driver is destroyed.
void test_closing_while_one_waits() {
    GatedDriver::Gate gate;
    std::vector<uint8_t> data(1 << 20, 7);
    auto store = make(std::make_unique<GatedDriver>(gate), 1);
    store->issue(0, data.data(), data.size(), true);
    store->issue(1, data.data(), data.size(), true);
    bool thrown = false;
    std::thread sleeper([&] {
        std::optional<BlockStore::Failure> failure;
        try {
            store->wait(1, failure);
        } catch (const std::runtime_error&) {
            thrown = true;
        }
    });
    {
        std::unique_lock<std::mutex> lock(gate.mutex);
        gate.moved.wait(lock, [&] { return gate.asleep == 1; });
    }
    std::thread closer([&] { store->close(); });
    {
        std::lock_guard<std::mutex> lock(gate.mutex);
        gate.open = true;
    }
    gate.moved.notify_all();
    sleeper.join();
    closer.join();
    // The sleeper may have been first, and its index done before the store was closed: `thrown` may be false.
    bool closed = false;
    try {
        store->update();
    } catch (const std::runtime_error&) {
        closed = true;
    }
    CHECK(closed, "the store is closed (the sleeper got %s error)", thrown ? "an" : "no");
}

// Threads write, read, wait for and free their own blobs through one store.
void test_threads(const char* driver) {
    auto store = make(fastio::make_store_driver(driver), 2);
    std::vector<std::thread> threads;
    for (int64_t number = 0; number < 4; ++number) {
        threads.emplace_back([&store, number] {
            std::mt19937_64 source(static_cast<uint64_t>(number));
            for (int64_t turn = 0; turn < 40; ++turn) {
                const int64_t index = number * 1000 + turn;
                std::vector<uint8_t> data(1 + source() % (300 << 10)), got(data.size());
                for (uint8_t& byte : data) byte = static_cast<uint8_t>(source());
                std::optional<BlockStore::Failure> failure;
                store->issue(index, data.data(), data.size(), true);
                if (turn % 3 == 0) store->wait(index, failure);
                store->issue(index, got.data(), got.size(), false);
                if (turn % 5 == 0) {
                    store->free(index);  // with commands in flight
                    store->update();
                    while (store->stats().commands_under_way > 0) store->update();  // the write may still be in flight
                    continue;
                }
                store->wait(index, failure);
                CHECK(!failure && got == data, "index %ld reads back unchanged", long(index));
                store->free(index);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(store->stats().bytes_used == 0, "no bytes are used at the end, not %lu",
          (unsigned long)store->stats().bytes_used);
}

void test_trace_is_bounded() {
    GatedDriver::Gate gate;
    gate.open = true;
    auto store = make(std::make_unique<GatedDriver>(gate), 1);
    alignas(64) uint8_t block[kStoreBlock] = {};
    store->set_recording(true);
    for (int64_t turn = 0; turn < 70'000; ++turn) {
        store->issue(0, block, sizeof block, true);
        if (turn == 69'999) store->issue(1, block, sizeof block, true);
        while (store->update() > 0) {
        }
        store->free(0);
    }
    const std::vector<BlockStore::Traced> trace = store->trace();
    CHECK(trace.size() == 65'536, "the trace holds 65,536 commands, not %zu", trace.size());
    CHECK(trace.front().lba == 0 && trace.back().lba == 1, "the trace keeps the latest commands");
}

void test_allocator() {
    fastio::LbaAllocator allocator;
    CHECK(!allocator.allocate(1), "without provisioned blocks, nothing is allocated");
    allocator.provision(10);
    CHECK(allocator.allocate(4).value() == 0 && allocator.allocate(2).value() == 4,
          "blocks come from the bump pointer");
    CHECK(allocator.allocate(4).value() == 6 && !allocator.allocate(1), "the provisioned blocks are used up");
    allocator.free(4, 2);
    allocator.free(0, 4);  // merged with its neighbour
    CHECK(allocator.allocate(6).value() == 0, "freed neighbours are merged");
    allocator.free(0, 6);
    allocator.free(6, 4);
    CHECK(allocator.used() == 0 && allocator.allocate(10).value() == 0,
          "when all is free, the bump pointer returns to 0");
}

}  // namespace

int main() {
    test_allocator();
    test_waiting_blocks_no_other_thread();
    test_closing_while_one_waits();
    test_trace_is_bounded();
    for (const char* driver : {"uring", "threads"}) {
        for (size_t devices : {1, 2}) {
            try {
                auto store = make(fastio::make_store_driver(driver), devices);
                CHECK(any_order(*store, 300) == 0, "no transfer fails with driver %s", driver);
                test_closing_with_commands_in_flight(driver);
                test_threads(driver);
            } catch (const fastio::Refused& error) {
                std::printf("driver %s skipped: %s\n", driver, error.what());
            }
        }
    }
    for (int round = 0; round < 10; ++round) {
        CHECK(any_order(*make(std::make_unique<FaultyDriver>(0), 2), 200) == 0,
              "without injected errors, no transfer fails");
        CHECK(any_order(*make(std::make_unique<FaultyDriver>(20), 1), 200) > 0, "injected errors are reported");
    }
    std::puts("block store: ok");
}
