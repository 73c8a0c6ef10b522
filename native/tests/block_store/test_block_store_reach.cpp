// A block store over a driver that knows its own devices, reaches only memory that it was given, takes small commands
// and answers with statuses: what NVMe asks of a store, without NVMe.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "block_store/store.hpp"
#include "memory/memory.hpp"
#include "support/errors.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::BlockStore;
using fastio::kStoreBlock;
using fastio::Mapping;

constexpr uint64_t kBlocks = 1024;  // of each device
constexpr uint64_t kLargest = 16 << 10;

std::mt19937_64 random_source(5);

uint64_t pick(uint64_t low, uint64_t high) { return low + random_source() % (high - low + 1); }

// What the test sees and says of a driver that the store owns.
struct Bench {
    std::vector<std::vector<uint8_t>> disks;
    std::map<uint8_t*, uint64_t> adopted;
    bool adopts = true;
    unsigned sent = 0, calls = 0;
    // The next commands end so, without having moved anything.
    std::vector<fastio::DeviceCompletion> answers;
};

class PickyDriver final : public fastio::StoreDriver {
  public:
    explicit PickyDriver(Bench& bench) : bench_(bench) {}
    unsigned depth() const override { return 6; }
    uint64_t largest_transfer() const override { return kLargest; }

    std::string adopt(uint8_t* memory, uint64_t nbytes) override {
        if (!bench_.adopts) return "no room in the IOMMU";
        bench_.adopted.emplace(memory, nbytes);
        return {};
    }

    void disown(uint8_t* memory) override {
        const uint64_t nbytes = bench_.adopted.at(memory);
        for (const fastio::DeviceCommand& command : waiting_) {
            CHECK(command.memory + command.nbytes <= memory || command.memory >= memory + nbytes,
                  "the device is at it");
        }
        bench_.adopted.erase(memory);
    }

    bool reaches(const uint8_t* memory, uint64_t nbytes) const override {
        return std::any_of(bench_.adopted.begin(), bench_.adopted.end(), [=](const auto& piece) {
            return memory >= piece.first && memory + nbytes <= piece.first + piece.second;
        });
    }

    std::vector<Device> devices() const override {
        std::vector<Device> list;
        for (size_t number = 0; number < bench_.disks.size(); ++number) {
            list.push_back({"disk " + std::to_string(number), kBlocks, 512, "model", "serial"});
        }
        return list;
    }

    std::vector<std::string> notes() const override { return {"this is a model"}; }
    uint64_t doorbells() const override { return bench_.calls; }

    void send(const fastio::DeviceCommand& command) override {
        CHECK(command.nbytes > 0 && command.nbytes <= kLargest && command.nbytes % kStoreBlock == 0, "%u bytes",
              command.nbytes);
        CHECK(command.fd == -1 && command.offset % kStoreBlock == 0, "offset %lu", (unsigned long)command.offset);
        CHECK(command.tag < depth() && waiting_.size() < depth(), "the queue's depth");
        CHECK(reaches(command.memory, command.nbytes), "memory that the device does not reach");
        waiting_.push_back(command);
        ++bench_.sent;
    }

    void flush() override { ++bench_.calls; }
    void wait() override {}
    unsigned unsent() const override { return 0; }

    bool reap(fastio::DeviceCompletion& completion) override {
        if (waiting_.empty() || pick(0, 2) == 0) return false;
        const size_t number = pick(0, waiting_.size() - 1);
        const fastio::DeviceCommand command = waiting_[number];
        waiting_.erase(waiting_.begin() + static_cast<long>(number));
        completion = {command.tag, static_cast<int32_t>(command.nbytes)};
        if (!bench_.answers.empty()) {
            completion.result = bench_.answers.back().result;
            completion.status = bench_.answers.back().status;
            bench_.answers.pop_back();
            return true;
        }
        std::vector<uint8_t>& disk = bench_.disks.at(command.device);
        if (command.offset + command.nbytes > disk.size()) {
            completion.result = -EIO;
            completion.status = 0x4080;
            return true;
        }
        uint8_t* place = disk.data() + command.offset;
        std::memcpy(command.write ? place : command.memory, command.write ? command.memory : place, command.nbytes);
        return true;
    }

  private:
    Bench& bench_;
    std::vector<fastio::DeviceCommand> waiting_;
};

std::unique_ptr<BlockStore> make(Bench& bench, size_t devices) {
    bench.disks.assign(devices, std::vector<uint8_t>(kBlocks * kStoreBlock));
    std::vector<fastio::StoreDevices::Device> list(devices, {-1, kBlocks});
    auto owned = std::make_unique<fastio::StoreDevices>(std::move(list), 0);
    return std::make_unique<BlockStore>(std::move(owned), std::make_unique<PickyDriver>(bench), 4);
}

void fill(uint8_t* memory, uint64_t nbytes) {
    std::generate(memory, memory + nbytes, [] { return static_cast<uint8_t>(random_source()); });
}

std::optional<BlockStore::Failure> move(BlockStore& store, int64_t index, uint8_t* memory, uint64_t nbytes,
                                        bool write) {
    std::optional<BlockStore::Failure> failure;
    store.issue(index, memory, nbytes, write);
    store.wait(index, failure);
    return failure;
}

// In any order, from memory that the driver has and from memory that it has not, and from both.
void test_any_order(size_t devices) {
    Bench bench;
    auto store = make(bench, devices);
    Mapping mapped(1 << 20), target(1 << 20);
    std::vector<uint8_t> plain(1 << 20);
    store->map(mapped.data(), 512 << 10);
    store->map(target.data(), target.nbytes());
    fill(mapped.data(), mapped.nbytes());
    fill(plain.data(), plain.size());
    std::map<int64_t, std::pair<uint8_t*, uint64_t>> blobs;
    for (int step = 0; step < 400; ++step) {
        const auto index = static_cast<int64_t>(pick(0, 7));
        auto found = blobs.find(index);
        if (found == blobs.end()) {
            uint8_t* memory = (pick(0, 1) == 0 ? mapped.data() : plain.data()) + pick(0, 200'000);
            const uint64_t nbytes = pick(0, 400'000);
            CHECK(!move(*store, index, memory, nbytes, true), "a write failed");
            blobs[index] = {memory, nbytes};
        } else if (pick(0, 1) == 0) {
            const auto [memory, nbytes] = found->second;
            std::vector<uint8_t> came(nbytes);
            uint8_t* into = pick(0, 1) == 0 ? target.data() + pick(0, 9) : came.data();
            CHECK(!move(*store, index, into, nbytes, false), "a read failed");
            CHECK(std::memcmp(into, memory, nbytes) == 0, "index %ld came back changed", long(index));
        } else {
            store->free(index);
            blobs.erase(found);
        }
    }
    CHECK(bench.adopted.size() == 3, "%zu pieces: two mapped ones and the store's own", bench.adopted.size());
    CHECK(store->stats().doorbells == bench.calls && bench.calls > 0, "doorbells");
    CHECK(store->devices().size() == devices && store->devices()[0].serial == "serial", "what the driver knows");
    store->close();
    CHECK(store->stats().doorbells == bench.calls && store->notes() == std::vector<std::string>{"this is a model"},
          "what a closed store knows of its driver");
}

void test_mapped_memory_is_not_copied() {
    Bench bench;
    auto store = make(bench, 1);
    Mapping memory(256 << 10);
    fill(memory.data(), memory.nbytes());
    CHECK(!move(*store, 0, memory.data(), memory.nbytes(), true), "x");
    CHECK(store->stats().bytes_bounced == memory.nbytes(), "memory that the device does not reach");
    store->map(memory.data(), memory.nbytes());
    const unsigned before = bench.sent;
    CHECK(!move(*store, 1, memory.data(), memory.nbytes(), true), "x");
    CHECK(!move(*store, 2, memory.data() + 4, memory.nbytes() - 4 - kStoreBlock, true), "x");
    CHECK(store->stats().bytes_bounced == memory.nbytes() + kStoreBlock - 4, "all but a partial block goes as it lies");
    CHECK(bench.sent - before == 16 + 17, "%u commands", bench.sent - before);
    store->issue(3, memory.data(), memory.nbytes(), true);
    store->update();
    store->free(3);  // the device is still at it
    store->unmap(memory.data());
    CHECK(bench.adopted.count(memory.data()) == 0, "still adopted");
    std::vector<uint8_t> came(memory.nbytes());
    CHECK(!move(*store, 1, came.data(), came.size(), false), "x");
    CHECK(std::memcmp(came.data(), memory.data(), came.size()) == 0, "came back changed");
}

// A read that waits for its write has the memory too.
void test_unmapping_waits_for_what_is_queued() {
    Bench bench;
    auto store = make(bench, 1);
    Mapping memory(256 << 10);
    std::vector<uint8_t> source(memory.nbytes());
    fill(source.data(), source.size());
    store->map(memory.data(), memory.nbytes());
    store->issue(0, source.data(), source.size(), true);
    store->issue(0, memory.data(), memory.nbytes(), false);
    store->unmap(memory.data());
    CHECK(std::memcmp(memory.data(), source.data(), source.size()) == 0, "unmapped before it was read");
}

void test_memory_that_cannot_be_adopted() {
    Bench bench;
    bench.adopts = false;
    auto store = make(bench, 1);
    std::vector<uint8_t> data(kStoreBlock);
    std::string told;
    try {
        store->map(data.data(), data.size());
    } catch (const fastio::Refused& refusal) {
        told = refusal.reason;
    }
    CHECK(told == "no room in the IOMMU", "%s", told.c_str());
    told.clear();
    store->issue(0, data.data(), data.size(), true);
    try {
        store->update();
    } catch (const fastio::Refused& refusal) {
        told = refusal.reason;
    }
    CHECK(told == "no memory to bounce through: no room in the IOMMU", "%s", told.c_str());
    bench.adopts = true;
    std::optional<BlockStore::Failure> failure;
    store->wait(0, failure);
    CHECK(!failure, "there is room again");
}

void test_statuses() {
    Bench bench;
    auto store = make(bench, 2);
    std::vector<uint8_t> data(kStoreBlock);
    auto failed = [&](std::vector<fastio::DeviceCompletion> answers) {
        bench.answers = std::move(answers);
        bench.sent = 0;
        std::optional<BlockStore::Failure> failure = move(*store, 0, data.data(), data.size(), true);
        store->free(0);
        return failure;
    };
    const fastio::DeviceCompletion final{0, -EIO, 0x4281}, passing{0, -EIO, 0x0281};
    auto failure = failed({final});
    CHECK(failure && failure->status == 0x4281 && failure->error == EIO && bench.sent == 1, "Do Not Retry");
    CHECK(!failed({passing, passing, passing, passing}) && bench.sent == 5, "the fifth try is as good as the first");
    failure = failed({passing, passing, passing, passing, passing});
    CHECK(failure && failure->status == 0x0281 && bench.sent == 5 && bench.answers.empty(), "%u tries", bench.sent);
    CHECK(store->stats().retries == 8, "%lu retries", (unsigned long)store->stats().retries);
    failure = failed({{0, -ENODEV, 0}});
    CHECK(failure && failure->status == 0 && failure->error == ENODEV, "no status");
    const fastio::DeviceCompletion cancelled{0, -ECANCELED, 0};
    CHECK(!failed({cancelled, {0, -EAGAIN, 0}}), "these are no errors");
    CHECK(!failed({cancelled, cancelled, cancelled, cancelled}), "nor are four");
    failure = failed({cancelled, cancelled, cancelled, cancelled, cancelled});
    CHECK(failure && failure->error == ECANCELED && bench.sent == 5, "cancelled for ever: %u tries", bench.sent);
}

void test_peek() {
    Bench bench;
    auto store = make(bench, 2);
    fill(bench.disks[1].data(), bench.disks[1].size());
    std::vector<uint8_t> came(900 << 10);
    std::optional<BlockStore::Failure> failure;
    store->peek(1, 3, came.data(), came.size(), failure);
    CHECK(!failure && std::memcmp(came.data(), bench.disks[1].data() + 3 * kStoreBlock, came.size()) == 0, "changed");
    store->peek(1, kBlocks - 1, came.data(), 2 * kStoreBlock, failure);
    CHECK(failure && failure->status == 0x4080 && failure->device == 1 && failure->lba == kBlocks - 1,
          "beyond the end");
    store->peek(0, 0, came.data(), kStoreBlock, failure);
    CHECK(!failure, "the failure before");
    CHECK(store->stats().bytes_used == 0, "a peek needs no room");
    bool refused = false;
    try {
        store->peek(2, 0, came.data(), kStoreBlock, failure);
    } catch (const std::out_of_range&) {
        refused = true;
    }
    CHECK(refused, "there is no third device");
}

void test_full() {
    Bench bench;
    auto store = make(bench, 1);
    std::vector<uint8_t> data(kBlocks * kStoreBlock);
    CHECK(!move(*store, 0, data.data(), data.size(), true), "all of it");
    int error = 0;
    try {
        store->issue(1, data.data(), 1, true);
    } catch (const fastio::SystemError& refusal) {
        error = refusal.error;
    }
    CHECK(error == ENOSPC, "errno %d", error);
    store->free(0);
    CHECK(!move(*store, 1, data.data(), data.size(), true), "and again");
}

}  // namespace

int main() {
    test_any_order(1);
    test_any_order(3);
    test_mapped_memory_is_not_copied();
    test_unmapping_waits_for_what_is_queued();
    test_memory_that_cannot_be_adopted();
    test_statuses();
    test_peek();
    test_full();
    std::puts("block store's reach: ok");
}
