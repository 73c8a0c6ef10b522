// Tests a block store on the user-space NVMe driver and a model of a controller that loses commands, fails and is reset
// from outside: reads return the written data, or an error explains why not.
#include <cerrno>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "block_store/store.hpp"
#include "nvme/channel.hpp"
#include "nvme/controller.hpp"
#include "tests/nvme/nvme_model.hpp"
#include "tests/support/check.hpp"
#include "vfio/memory.hpp"

namespace {

using fastio::BlockStore;
using fastio::kStoreBlock;

constexpr uint64_t kNamespace = 8 << 20;
constexpr uint32_t kTimeoutMs = 200;
constexpr unsigned kSlots = 6;

std::mt19937_64 random_source(31);

uint64_t pick(uint64_t low, uint64_t high) { return low + random_source() % (high - low + 1); }

// The driver "vfio" without VFIO: it maps memory for the model, and each poll advances the model's clock.
class ModelDriver final : public fastio::StoreDriver {
  public:
    explicit ModelDriver(NvmeModel& model)
        : model_(model),
          controller_(model, "model", kSlots, kTimeoutMs),
          channel_(controller_, controller_.describe(1)) {}
    ~ModelDriver() override {
        controller_.shut_down();
        for (const auto& [begin, piece] : memory_.pieces()) model_.unmap(piece.address, piece.nbytes);
    }

    unsigned depth() const override { return kSlots; }
    uint64_t largest_transfer() const override { return controller_.largest_transfer(); }
    std::string map_memory(uint8_t* memory, uint64_t nbytes) override {
        memory_.add({memory, nbytes, model_.map(memory, nbytes)});
        return {};
    }
    bool reaches(const uint8_t* memory, uint64_t nbytes) const override {
        return memory_.address_of(memory, nbytes).has_value();
    }
    void send(const fastio::DeviceCommand& command) override {
        const uint64_t address = memory_.address_of(command.memory, command.nbytes).value();
        channel_.send(command.write, command.offset, command.nbytes, address, command.tag);
    }
    void flush() override { channel_.flush(); }
    void wait() override { model_.pause(); }
    bool reap(fastio::DeviceCompletion& completion) override {
        model_.pause();
        return channel_.reap(completion);
    }
    unsigned unsent() const override { return 0; }
    std::vector<std::string> notes() const override { return channel_.notes(); }

  private:
    NvmeModel& model_;
    fastio::NvmeController controller_;
    fastio::NvmeChannel channel_;
    fastio::MappedMemory memory_;
};

std::unique_ptr<BlockStore> make_store(NvmeModel& model) {
    std::vector<fastio::StoreDevices::Device> list{{-1, kNamespace / kStoreBlock}};
    auto devices = std::make_unique<fastio::StoreDevices>(std::move(list), 0);
    return std::make_unique<BlockStore>(std::move(devices), std::make_unique<ModelDriver>(model), 4);
}

std::vector<uint8_t> random_bytes(uint64_t nbytes) {
    std::vector<uint8_t> data(nbytes);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random_source());
    return data;
}

// Checks that a failure is one that the injected faults can cause.
void check_failure(const BlockStore::Failure& failure) {
    const bool timed_out = failure.error == ETIMEDOUT && (failure.status & 0x7ff) == 0x371;
    const bool aborted = failure.error == EIO && failure.status == 0x371;  // by too many restarts
    CHECK(timed_out || aborted, "a timeout or an abort, not errno %d, status %#x", failure.error, failure.status);
    CHECK(failure.lba < kNamespace / kStoreBlock && !failure.stuck, "LBA %lu", (unsigned long)failure.lba);
}

void inject(NvmeModel& model) {
    switch (pick(0, 60)) {
        case 0:
            model.lose = 1;
            break;
        case 1:
            model.fatal = true;
            break;
        case 2:
            model.reset();
            break;
        case 3:
            model.answers_twice = true;
            break;
        case 4:
            model.deaf = true;
            break;
        default:
            break;
    }
}

// Returns the number of failed transfers.
unsigned any_order(NvmeModel& model, BlockStore& store, int steps, bool faults) {
    std::map<int64_t, std::vector<uint8_t>> blobs;
    unsigned failures = 0;
    auto failed = [&](int64_t index) {
        std::optional<BlockStore::Failure> failure;
        store.wait(index, failure);
        if (failure) check_failure(*failure), ++failures;
        return failure.has_value();
    };
    for (int step = 0; step < steps; ++step) {
        if (faults) inject(model);
        const auto index = static_cast<int64_t>(pick(0, 11));
        auto found = blobs.find(index);
        if (found == blobs.end()) {
            found = blobs.emplace(index, random_bytes(pick(1, pick(1, 300'000)))).first;
            store.issue(index, found->second.data(), found->second.size(), true);
            if (pick(0, 1) == 0 || !failed(index)) continue;
        } else {
            if (!failed(index)) {
                std::vector<uint8_t> got(found->second.size());
                store.issue(index, got.data(), got.size(), false);
                if (!failed(index)) CHECK(got == found->second, "index %ld reads back unchanged", long(index));
            }
            if (pick(0, 1) == 0) continue;
        }
        store.free(index);
        blobs.erase(index);
    }
    for (const auto& [index, blob] : blobs) {
        failed(index);
        store.free(index);
    }
    CHECK(store.stats().bytes_used == 0, "no bytes are used at the end, not %lu",
          (unsigned long)store.stats().bytes_used);
    return failures;
}

void test_without_faults() {
    NvmeModel model(kNamespace);
    auto store = make_store(model);
    CHECK(any_order(model, *store, 1000, false) == 0, "no transfer fails");
    CHECK(store->notes().empty(), "%s", store->notes()[0].c_str());
}

void test_with_faults() {
    NvmeModel model(kNamespace);
    auto store = make_store(model);
    const unsigned failures = any_order(model, *store, 10'000, true);
    CHECK(failures > 0 && failures < 1000, "some transfers fail, not %u", failures);
    CHECK(store->stats().retries > 0, "commands are retried");
    CHECK(!store->notes().empty() && model.resets_seen > 0, "the notes report restarts");
    model.lose = 0;
    model.fatal = model.deaf = model.answers_twice = false;
    store->close();
    CHECK(model.mappings() == 0 && !model.bus_master(), "closing leaves no mapping and no bus master");
}

// The controller vanishes during writes: every index ends with an error, and the store can be closed.
void test_gone() {
    NvmeModel model(kNamespace);
    auto store = make_store(model);
    std::vector<std::vector<uint8_t>> blobs;
    for (int64_t index = 0; index < 5; ++index) {
        blobs.push_back(random_bytes(300'000));
        store->issue(index, blobs.back().data(), blobs.back().size(), true);
    }
    model.vanish();
    for (int64_t index = 0; index < 5; ++index) {
        std::optional<BlockStore::Failure> failure;
        store->wait(index, failure);
        CHECK(failure && failure->error == ENODEV, "index %ld: ENODEV, not errno %d", long(index),
              failure ? failure->error : 0);
    }
    const std::vector<std::string> notes = store->notes();
    CHECK(notes.size() == 1 && notes[0].find("given up: it is gone") != std::string::npos, "%s", notes[0].c_str());
    store->close();
}

}  // namespace

int main() {
    test_without_faults();
    test_with_faults();
    test_gone();
}
