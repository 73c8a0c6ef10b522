// Tests a block store on a driver like those for NVMe: it opens its devices itself, accesses only mapped memory, takes
// small commands and returns statuses.
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

// The state of a driver that the store owns, for the test to inspect and control.
struct State {
    std::vector<std::vector<uint8_t>> disks;
    std::map<uint8_t*, uint64_t> mapped;
    bool maps = true;
    unsigned sent = 0, calls = 0;
    // The next commands complete with these results, last one first, and move no data.
    std::vector<fastio::DeviceCompletion> answers;
};

class StrictDriver final : public fastio::StoreDriver {
  public:
    explicit StrictDriver(State& state) : state_(state) {}
    unsigned depth() const override { return 6; }
    uint64_t largest_transfer() const override { return kLargest; }

    std::string map_memory(uint8_t* memory, uint64_t nbytes) override {
        if (!state_.maps) return "no room in the IOMMU";
        state_.mapped.emplace(memory, nbytes);
        return {};
    }

    void unmap_memory(uint8_t* memory) override {
        const uint64_t nbytes = state_.mapped.at(memory);
        for (const fastio::DeviceCommand& command : waiting_) {
            CHECK(command.memory + command.nbytes <= memory || command.memory >= memory + nbytes,
                  "no command uses the unmapped memory");
        }
        state_.mapped.erase(memory);
    }

    bool reaches(const uint8_t* memory, uint64_t nbytes) const override {
        return std::any_of(state_.mapped.begin(), state_.mapped.end(), [=](const auto& piece) {
            return memory >= piece.first && memory + nbytes <= piece.first + piece.second;
        });
    }

    std::vector<Device> devices() const override {
        std::vector<Device> list;
        for (size_t number = 0; number < state_.disks.size(); ++number) {
            list.push_back({"disk " + std::to_string(number), kBlocks, 512, "model", "serial"});
        }
        return list;
    }

    std::vector<std::string> notes() const override { return {"this is a model"}; }
    uint64_t doorbells() const override { return state_.calls; }

    void send(const fastio::DeviceCommand& command) override {
        CHECK(command.nbytes > 0 && command.nbytes <= kLargest && command.nbytes % kStoreBlock == 0,
              "whole blocks, not %u bytes", command.nbytes);
        CHECK(command.fd == -1 && command.offset % kStoreBlock == 0, "the offset is a multiple of a block, not %lu",
              (unsigned long)command.offset);
        CHECK(command.tag < depth() && waiting_.size() < depth(), "the commands are within the queue's depth");
        CHECK(reaches(command.memory, command.nbytes), "the device can access the memory");
        waiting_.push_back(command);
        ++state_.sent;
    }

    void flush() override { ++state_.calls; }
    void wait() override {}
    unsigned unsent() const override { return 0; }

    bool reap(fastio::DeviceCompletion& completion) override {
        if (waiting_.empty() || pick(0, 2) == 0) return false;
        const size_t number = pick(0, waiting_.size() - 1);
        const fastio::DeviceCommand command = waiting_[number];
        waiting_.erase(waiting_.begin() + static_cast<long>(number));
        completion = {command.tag, static_cast<int32_t>(command.nbytes)};
        if (!state_.answers.empty()) {
            completion.result = state_.answers.back().result;
            completion.status = state_.answers.back().status;
            state_.answers.pop_back();
            return true;
        }
        std::vector<uint8_t>& disk = state_.disks.at(command.device);
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
    State& state_;
    std::vector<fastio::DeviceCommand> waiting_;
};

std::unique_ptr<BlockStore> make(State& state, size_t devices) {
    state.disks.assign(devices, std::vector<uint8_t>(kBlocks * kStoreBlock));
    std::vector<fastio::StoreDevices::Device> list(devices, {-1, kBlocks});
    auto owned = std::make_unique<fastio::StoreDevices>(std::move(list), 0);
    return std::make_unique<BlockStore>(std::move(owned), std::make_unique<StrictDriver>(state), 4);
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

// Random operations on mapped memory, other memory, and memory that is mapped in part.
void test_any_order(size_t devices) {
    State state;
    auto store = make(state, devices);
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
            CHECK(!move(*store, index, memory, nbytes, true), "the write succeeds");
            blobs[index] = {memory, nbytes};
        } else if (pick(0, 1) == 0) {
            const auto [memory, nbytes] = found->second;
            std::vector<uint8_t> got(nbytes);
            uint8_t* into = pick(0, 1) == 0 ? target.data() + pick(0, 9) : got.data();
            CHECK(!move(*store, index, into, nbytes, false), "the read succeeds");
            CHECK(std::memcmp(into, memory, nbytes) == 0, "index %ld reads back unchanged", long(index));
        } else {
            store->free(index);
            blobs.erase(found);
        }
    }
    CHECK(state.mapped.size() == 3, "two mapped pieces and the bounce buffer, not %zu pieces", state.mapped.size());
    CHECK(store->stats().doorbells == state.calls && state.calls > 0, "the doorbell count is the driver's");
    CHECK(store->devices().size() == devices && store->devices()[0].serial == "serial", "the devices are the driver's");
    store->close();
    CHECK(store->stats().doorbells == state.calls && store->notes() == std::vector<std::string>{"this is a model"},
          "a closed store keeps the driver's counts and notes");
}

void test_mapped_memory_is_not_copied() {
    State state;
    auto store = make(state, 1);
    Mapping memory(256 << 10);
    fill(memory.data(), memory.nbytes());
    CHECK(!move(*store, 0, memory.data(), memory.nbytes(), true), "the write succeeds");
    CHECK(store->stats().bytes_bounced == memory.nbytes(), "memory that is not mapped is bounced");
    store->map(memory.data(), memory.nbytes());
    const unsigned before = state.sent;
    CHECK(!move(*store, 1, memory.data(), memory.nbytes(), true), "the write succeeds");
    CHECK(!move(*store, 2, memory.data() + 4, memory.nbytes() - 4 - kStoreBlock, true), "the write succeeds");
    CHECK(store->stats().bytes_bounced == memory.nbytes() + kStoreBlock - 4, "only a partial block is bounced");
    CHECK(state.sent - before == 16 + 17, "16 and 17 commands, not %u in all", state.sent - before);
    store->issue(3, memory.data(), memory.nbytes(), true);
    store->update();
    store->free(3);  // still in flight
    store->unmap(memory.data());
    CHECK(state.mapped.count(memory.data()) == 0, "the memory is unmapped");
    std::vector<uint8_t> got(memory.nbytes());
    CHECK(!move(*store, 1, got.data(), got.size(), false), "the read succeeds");
    CHECK(std::memcmp(got.data(), memory.data(), got.size()) == 0, "reads back unchanged");
}

// A read that waits for its write uses the memory, too.
void test_unmapping_waits_for_queued_reads() {
    State state;
    auto store = make(state, 1);
    Mapping memory(256 << 10);
    std::vector<uint8_t> source(memory.nbytes());
    fill(source.data(), source.size());
    store->map(memory.data(), memory.nbytes());
    store->issue(0, source.data(), source.size(), true);
    store->issue(0, memory.data(), memory.nbytes(), false);
    store->unmap(memory.data());
    CHECK(std::memcmp(memory.data(), source.data(), source.size()) == 0,
          "the read is done before the memory is unmapped");
}

void test_memory_cannot_be_mapped() {
    State state;
    state.maps = false;
    auto store = make(state, 1);
    std::vector<uint8_t> data(kStoreBlock);
    std::string reason;
    try {
        store->map(data.data(), data.size());
    } catch (const fastio::Refused& refusal) {
        reason = refusal.reason;
    }
    CHECK(reason == "no room in the IOMMU", "%s", reason.c_str());
    reason.clear();
    store->issue(0, data.data(), data.size(), true);
    try {
        store->update();
    } catch (const fastio::Refused& refusal) {
        reason = refusal.reason;
    }
    CHECK(reason == "no bounce buffer: no room in the IOMMU", "%s", reason.c_str());
    state.maps = true;
    std::optional<BlockStore::Failure> failure;
    store->wait(0, failure);
    CHECK(!failure, "the write succeeds once memory can be mapped");
}

void test_statuses() {
    State state;
    auto store = make(state, 2);
    std::vector<uint8_t> data(kStoreBlock);
    auto failed = [&](std::vector<fastio::DeviceCompletion> answers) {
        state.answers = std::move(answers);
        state.sent = 0;
        std::optional<BlockStore::Failure> failure = move(*store, 0, data.data(), data.size(), true);
        store->free(0);
        return failure;
    };
    const fastio::DeviceCompletion final{0, -EIO, 0x4281}, passing{0, -EIO, 0x0281};
    auto failure = failed({final});
    CHECK(failure && failure->status == 0x4281 && failure->error == EIO && state.sent == 1,
          "Do Not Retry is not retried");
    CHECK(!failed({passing, passing, passing, passing}) && state.sent == 5, "the fifth try succeeds");
    failure = failed({passing, passing, passing, passing, passing});
    CHECK(failure && failure->status == 0x0281 && state.sent == 5 && state.answers.empty(),
          "it fails after 5 tries, not %u", state.sent);
    CHECK(store->stats().retries == 8, "8 retries, not %lu", (unsigned long)store->stats().retries);
    failure = failed({{0, -ENODEV, 0}});
    CHECK(failure && failure->status == 0 && failure->error == ENODEV, "an errno without a status is kept");
    const fastio::DeviceCompletion cancelled{0, -ECANCELED, 0};
    CHECK(!failed({cancelled, {0, -EAGAIN, 0}}), "ECANCELED and EAGAIN are retried");
    CHECK(!failed({cancelled, cancelled, cancelled, cancelled}), "four cancellations are retried");
    failure = failed({cancelled, cancelled, cancelled, cancelled, cancelled});
    CHECK(failure && failure->error == ECANCELED && state.sent == 5, "endless cancellation fails after 5 tries, not %u",
          state.sent);
}

void test_peek() {
    State state;
    auto store = make(state, 2);
    fill(state.disks[1].data(), state.disks[1].size());
    std::vector<uint8_t> got(900 << 10);
    std::optional<BlockStore::Failure> failure;
    store->peek(1, 3, got.data(), got.size(), failure);
    CHECK(!failure && std::memcmp(got.data(), state.disks[1].data() + 3 * kStoreBlock, got.size()) == 0,
          "peek reads the blocks");
    store->peek(1, kBlocks - 1, got.data(), 2 * kStoreBlock, failure);
    CHECK(failure && failure->status == 0x4080 && failure->device == 1 && failure->lba == kBlocks - 1,
          "reading beyond the end fails");
    store->peek(0, 0, got.data(), kStoreBlock, failure);
    CHECK(!failure, "the earlier failure is cleared");
    CHECK(store->stats().bytes_used == 0, "peek allocates no blocks");
    bool refused = false;
    try {
        store->peek(2, 0, got.data(), kStoreBlock, failure);
    } catch (const std::out_of_range&) {
        refused = true;
    }
    CHECK(refused, "a missing device is refused");
}

void test_poke() {
    State state;
    auto store = make(state, 2);
    std::vector<uint8_t> data(900 << 10);
    fill(data.data(), data.size());
    std::optional<BlockStore::Failure> failure;
    store->poke(1, 3, data.data(), data.size(), failure);
    CHECK(!failure && std::memcmp(data.data(), state.disks[1].data() + 3 * kStoreBlock, data.size()) == 0,
          "poke writes the blocks");
    store->poke(1, kBlocks - 1, data.data(), 2 * kStoreBlock, failure);
    CHECK(failure && failure->write && failure->device == 1 && failure->lba == kBlocks - 1,
          "writing beyond the end fails");
    CHECK(store->stats().bytes_used == 0, "poke allocates no blocks");
}

void test_full() {
    State state;
    auto store = make(state, 1);
    std::vector<uint8_t> data(kBlocks * kStoreBlock);
    CHECK(!move(*store, 0, data.data(), data.size(), true), "a blob fills the store");
    int error = 0;
    try {
        store->issue(1, data.data(), 1, true);
    } catch (const fastio::SystemError& refusal) {
        error = refusal.error;
    }
    CHECK(error == ENOSPC, "a further write fails with ENOSPC, not errno %d", error);
    store->free(0);
    CHECK(!move(*store, 1, data.data(), data.size(), true), "after free() there is room again");
}

}  // namespace

int main() {
    test_any_order(1);
    test_any_order(3);
    test_mapped_memory_is_not_copied();
    test_unmapping_waits_for_queued_reads();
    test_memory_cannot_be_mapped();
    test_statuses();
    test_peek();
    test_poke();
    test_full();
    std::puts("block store's reach: ok");
}
