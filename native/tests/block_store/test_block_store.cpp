// Random operations on a block store against a plain table, by both drivers and by one that fails as disks do.
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

// Moves bytes in any order, and often less than asked, or fails: a disk that all of settle() must cope with.
class CrankyDriver final : public fastio::StoreDriver {
  public:
    explicit CrankyDriver(unsigned errors_in_100) : errors_in_100_(errors_in_100) {}
    unsigned depth() const override { return 5; }
    std::string adopt(uint8_t*, uint64_t) override { return pick(0, 1) == 0 ? "" : "not today"; }
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

// Moves nothing, and sleeps in wait() until the door is opened: a device as slow as the test wants it.
class GatedDriver final : public fastio::StoreDriver {
  public:
    struct Door {
        std::mutex mutex;
        std::condition_variable moved;
        bool open = false;
        int asleep = 0;
    };

    explicit GatedDriver(Door& door) : door_(door) {}
    unsigned depth() const override { return 4; }
    std::string adopt(uint8_t*, uint64_t) override { return {}; }
    void send(const fastio::DeviceCommand& command) override { sent_.push_back(command); }
    void flush() override {}
    unsigned unsent() const override { return 0; }

    void wait() override {
        std::unique_lock<std::mutex> lock(door_.mutex);
        CHECK(++door_.asleep == 1, "two threads sleep at the device");
        door_.moved.notify_all();
        door_.moved.wait(lock, [this] { return door_.open; });
        --door_.asleep;
    }

    bool reap(fastio::DeviceCompletion& completion) override {
        std::lock_guard<std::mutex> lock(door_.mutex);
        if (sent_.empty() || !door_.open) return false;
        completion = {sent_.back().tag, static_cast<int32_t>(sent_.back().nbytes)};
        sent_.pop_back();
        return true;
    }

  private:
    Door& door_;
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

// Whether it came without an error; what came is then compared.
bool fetch(BlockStore& store, int64_t index, const Blob& blob) {
    std::vector<uint8_t> came(pick(0, blob.data.size()));
    std::optional<BlockStore::Failure> failure;
    store.issue(index, came.data(), came.size(), false);
    store.wait(index, failure);
    if (failure) return false;
    CHECK(std::equal(came.begin(), came.end(), blob.data.begin()), "index %ld came back changed", long(index));
    return true;
}

// Gives how many transfers failed.
int any_order(BlockStore& store, int steps) {
    std::map<int64_t, Blob> blobs;
    std::vector<std::vector<uint8_t>> given_up;  // memory of writes that the driver may still be at
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
                CHECK(error.error == ENOSPC, "errno %d", error.error);
                CHECK(!store.contains(index), "a write without room must leave nothing");
                blobs.erase(index);
            }
        } else if (pick(0, 2) == 0) {
            store.free(index);
            given_up.push_back(std::move(found->second.data));
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
    CHECK(store.stats().bytes_used == 0, "%lu bytes are lost", (unsigned long)store.stats().bytes_used);
    return failures;
}

void test_closing_with_work_under_way(const char* driver) {
    std::vector<uint8_t> data(1 << 20, 7);
    auto store = make(fastio::make_store_driver(driver), 1);
    store->issue(0, data.data(), data.size(), true);
    store->issue(1, data.data() + 1, data.size() - 1, true);
    store->update();
    store->close();
    store->close();
}

// A thread that waits keeps none from going on, whatever it calls; and all who wait are woken.
void test_others_go_on_while_one_waits() {
    GatedDriver::Door door;
    std::vector<uint8_t> data(64 << 10, 7);
    auto store = make(std::make_unique<GatedDriver>(door), 1);
    for (int64_t index = 0; index < 6; ++index) store->issue(index, data.data(), data.size(), true);
    auto waiting = [&](int64_t index) {
        std::optional<BlockStore::Failure> failure;
        store->wait(index, failure);
        CHECK(!failure, "index %ld failed", long(index));
    };
    std::thread sleeper(waiting, 0);
    {
        std::unique_lock<std::mutex> lock(door.mutex);
        door.moved.wait(lock, [&] { return door.asleep == 1; });
    }
    // Each of these would hang if the sleeper kept the lock.
    std::optional<BlockStore::Failure> failure;
    store->issue(6, data.data(), data.size(), true);
    CHECK(store->update() == 7, "commands under way");
    CHECK(!store->is_done(6, failure), "done behind a closed door");
    CHECK(store->contains(6) && store->stats().commands_under_way == 7, "the table");
    store->free(5);
    std::vector<std::thread> more;
    for (int64_t index : {1, 2, 3, 6}) more.emplace_back(waiting, index);
    {
        std::lock_guard<std::mutex> lock(door.mutex);
        door.open = true;
    }
    door.moved.notify_all();
    sleeper.join();
    for (std::thread& thread : more) thread.join();
    while (store->update() > 0) {
    }
    for (int64_t index : {0, 1, 2, 3, 4, 6}) store->free(index);
    CHECK(store->stats().bytes_used == 0, "%lu bytes are lost", (unsigned long)store->stats().bytes_used);
}

// Closing while a thread waits: that thread is told, and only then is the driver gone.
void test_closing_while_one_waits() {
    GatedDriver::Door door;
    std::vector<uint8_t> data(1 << 20, 7);
    auto store = make(std::make_unique<GatedDriver>(door), 1);
    store->issue(0, data.data(), data.size(), true);
    store->issue(1, data.data(), data.size(), true);
    bool told = false;
    std::thread sleeper([&] {
        std::optional<BlockStore::Failure> failure;
        try {
            store->wait(1, failure);
        } catch (const std::runtime_error&) {
            told = true;
        }
    });
    {
        std::unique_lock<std::mutex> lock(door.mutex);
        door.moved.wait(lock, [&] { return door.asleep == 1; });
    }
    std::thread closer([&] { store->close(); });
    {
        std::lock_guard<std::mutex> lock(door.mutex);
        door.open = true;
    }
    door.moved.notify_all();
    sleeper.join();
    closer.join();
    // The sleeper may have been first, and its index done before the store was closed.
    bool closed = false;
    try {
        store->update();
    } catch (const std::runtime_error&) {
        closed = true;
    }
    CHECK(closed, "open after close (the sleeper was %stold)", told ? "" : "not ");
}

// Threads that write, read, wait and free blobs of their own through one store.
void test_threads(const char* driver) {
    auto store = make(fastio::make_store_driver(driver), 2);
    std::vector<std::thread> threads;
    for (int64_t number = 0; number < 4; ++number) {
        threads.emplace_back([&store, number] {
            std::mt19937_64 source(static_cast<uint64_t>(number));
            for (int64_t turn = 0; turn < 40; ++turn) {
                const int64_t index = number * 1000 + turn;
                std::vector<uint8_t> data(1 + source() % (300 << 10)), came(data.size());
                for (uint8_t& byte : data) byte = static_cast<uint8_t>(source());
                std::optional<BlockStore::Failure> failure;
                store->issue(index, data.data(), data.size(), true);
                if (turn % 3 == 0) store->wait(index, failure);
                store->issue(index, came.data(), came.size(), false);
                if (turn % 5 == 0) {
                    store->free(index);  // in the middle of it
                    store->update();
                    while (store->stats().commands_under_way > 0) store->update();  // the write may still be on its way
                    continue;
                }
                store->wait(index, failure);
                CHECK(!failure && came == data, "index %ld came back changed", long(index));
                store->free(index);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(store->stats().bytes_used == 0, "%lu bytes are lost", (unsigned long)store->stats().bytes_used);
}

void test_the_trace_is_bounded() {
    GatedDriver::Door door;
    door.open = true;
    auto store = make(std::make_unique<GatedDriver>(door), 1);
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
    CHECK(trace.size() == 65'536, "%zu commands", trace.size());
    CHECK(trace.front().lba == 0 && trace.back().lba == 1, "the latest are kept");
}

void test_allocator() {
    fastio::LbaAllocator allocator;
    CHECK(!allocator.allocate(1), "nothing is provisioned");
    allocator.provision(10);
    CHECK(allocator.allocate(4).value() == 0 && allocator.allocate(2).value() == 4, "the bump pointer");
    CHECK(allocator.allocate(4).value() == 6 && !allocator.allocate(1), "full");
    allocator.free(4, 2);
    allocator.free(0, 4);  // merged with its neighbour
    CHECK(allocator.allocate(6).value() == 0, "six freed blocks in a row");
    allocator.free(0, 6);
    allocator.free(6, 4);
    CHECK(allocator.used() == 0 && allocator.allocate(10).value() == 0, "all free again");
}

}  // namespace

int main() {
    test_allocator();
    test_others_go_on_while_one_waits();
    test_closing_while_one_waits();
    test_the_trace_is_bounded();
    for (const char* driver : {"uring", "threads"}) {
        for (size_t devices : {1, 2}) {
            try {
                auto store = make(fastio::make_store_driver(driver), devices);
                CHECK(any_order(*store, 300) == 0, "a transfer failed by driver %s", driver);
                test_closing_with_work_under_way(driver);
                test_threads(driver);
            } catch (const fastio::Refused& error) {
                std::printf("driver %s is refused here: %s\n", driver, error.what());
            }
        }
    }
    for (int round = 0; round < 10; ++round) {
        CHECK(any_order(*make(std::make_unique<CrankyDriver>(0), 2), 200) == 0, "an error out of nothing");
        CHECK(any_order(*make(std::make_unique<CrankyDriver>(20), 1), 200) > 0, "no error was told");
    }
    std::puts("block store: ok");
}
