// Tests the driver "spdk" with a model of SPDK in memory (fake_spdk/, NOT SPDK): full queues, errors with statuses,
// lost queues, resets, timeouts, memory without DMA access. tests/block_store/test_spdk_store.py tests it with SPDK
// itself.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "block_store/store.hpp"
#include "fake_spdk/fake_spdk.hpp"
#include "memory/memory.hpp"
#include "nvme/wire.hpp"
#include "spdk/environment.hpp"
#include "support/errors.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::BlockStore;
using fastio::kStoreBlock;

std::mt19937_64 random_source(5);

uint64_t pick(uint64_t low, uint64_t high) { return low + random_source() % (high - low + 1); }

fake::Controller& fresh(const std::string& address, const std::vector<uint32_t>& lba_bytes) {
    fake::Controller& made = fake::world().controllers[address] = {};
    for (size_t number = 0; number < lba_bytes.size(); ++number) {
        made.namespaces[static_cast<uint32_t>(number + 1)].lba_bytes = lba_bytes[number];
    }
    return made;
}

std::unique_ptr<BlockStore> open(const std::vector<std::string>& ids) {
    auto driver = fastio::make_spdk_driver(ids);
    std::vector<fastio::StoreDevices::Device> list;
    for (const auto& device : driver->devices()) list.push_back({-1, device.blocks});
    auto devices = std::make_unique<fastio::StoreDevices>(std::move(list), 0);
    return std::make_unique<BlockStore>(std::move(devices), std::move(driver), 4096);
}

std::string refusal(const std::vector<std::string>& ids) {
    try {
        fastio::make_spdk_driver(ids);
    } catch (const fastio::Refused& refused) {
        return refused.reason;
    }
    return {};
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void check_all_is_released() {
    CHECK(fake::world().connected == 0 && fake::world().queues == 0, "all controllers and queues are released");
    CHECK(fake::world().registered.empty(), "all memory is unregistered");
}

// Random writes, reads and frees against a simple table. Checks the data of successful reads, and returns the number of
// failures.
int any_order(BlockStore& store, uint8_t* memory, uint64_t most, int steps) {
    std::map<int64_t, std::vector<uint8_t>> blobs;
    int failures = 0;
    for (int step = 0; step < steps; ++step) {
        auto index = static_cast<int64_t>(pick(0, 7));
        std::optional<BlockStore::Failure> failure;
        auto found = blobs.find(index);
        if (found == blobs.end()) {
            std::vector<uint8_t> data(pick(1, 700 << 10));
            uint64_t seed = random_source();
            for (uint8_t& byte : data) byte = static_cast<uint8_t>((seed = seed * 6364136223846793005U + 1) >> 56);
            uint8_t* from = data.data();  // not registered and not aligned: bounced
            if (pick(0, 1) == 0 && data.size() <= most) {
                std::memcpy(memory, data.data(), data.size());
                from = memory;
            }
            store.issue(index, from, data.size(), true);
            store.wait(index, failure);
            if (failure) {
                ++failures;
                store.free(index);
            } else {
                blobs.emplace(index, std::move(data));
            }
        } else if (pick(0, 2) > 0) {
            std::vector<uint8_t> got(found->second.size());
            uint8_t* to = pick(0, 1) == 0 && got.size() <= most ? memory : got.data();
            store.issue(index, to, got.size(), false);
            store.wait(index, failure);
            if (failure) {
                ++failures;
            } else {
                CHECK(std::memcmp(to, found->second.data(), got.size()) == 0, "blob %ld reads back unchanged",
                      long(index));
            }
        } else {
            store.free(index);
            blobs.erase(found);
        }
    }
    return failures;
}

void test_any_order_with_faults() {
    fake::Controller& first = fresh("0000:01:00.0", {512, 4096});
    fresh("0000:02:00.0", {4096});
    fastio::Mapping mapping(4 << 20);
    for (const char* fault : {"none", "lost queues", "lost controllers", "bad blocks"}) {
        bool loses = std::strncmp(fault, "lost", 4) == 0, is_bad = std::strcmp(fault, "bad blocks") == 0;
        first.lose_queue_in = loses ? 37 : 0;
        first.fails_with_it = std::strcmp(fault, "lost controllers") == 0;
        if (is_bad) first.namespaces[1].bad_lbas = {{1000, 2 << 8 | 0x81}, {5000, 2 << 8 | 0x80}};
        auto store = open({"trtype=PCIe traddr=0000:01:00.0", "trtype=PCIe traddr=0000:02:00.0",
                           "trtype=PCIe traddr=0000:01:00.0 ns=2"});
        CHECK(fake::world().connected == 2, "two namespaces of one controller share a connection");
        store->map(mapping.data(), mapping.nbytes());
        int failures = any_order(*store, mapping.data(), mapping.nbytes(), 2500);
        CHECK((failures > 0) == is_bad, "transfers fail with bad blocks only; %s: %d failures", fault, failures);
        BlockStore::Stats stats = store->stats();
        CHECK(stats.bytes_bounced > 0 && stats.bytes_bounced < stats.bytes_written + stats.bytes_read,
              "only memory that is not mapped is bounced");
        store->unmap(mapping.data());
        store.reset();
        check_all_is_released();
    }
    CHECK(first.reconnects > 2 && first.resets > 2, "queues are reconnected and controllers reset: %u, %u times",
          first.reconnects, first.resets);
}

void test_error_status_and_lba() {
    fake::Controller& controller = fresh("0000:01:00.0", {512});
    auto store = open({"trtype=PCIe traddr=0000:01:00.0"});
    std::vector<uint8_t> data(1 << 20, 7);
    std::optional<BlockStore::Failure> failure;
    store->issue(1, data.data(), data.size(), true);
    store->wait(1, failure);
    CHECK(!failure, "the write succeeds");
    controller.namespaces[1].bad_lbas[8 * 70 + 3] = 2 << 8 | 0x81;  // media error: unrecovered read error
    store->issue(1, data.data(), data.size(), false);
    store->wait(1, failure);
    CHECK(failure && failure->error == EIO && !failure->write && failure->status == (2 << 8 | 0x81),
          "the read fails with its status");
    CHECK(failure->lba == 64 && failure->device == 0, "the LBA is that of the command, 64, not %lu",
          (unsigned long)failure->lba);
    controller.namespaces[1].bad_lbas.clear();
    store->issue(1, data.data(), data.size(), false);
    store->wait(1, failure);
    CHECK(!failure, "a second read succeeds");
}

void test_hanging_commands_are_reset_and_retried() {
    fake::Controller& controller = fresh("0000:01:00.0", {4096});
    auto store = open({"trtype=PCIe traddr=0000:01:00.0"});
    std::vector<uint8_t> data(600 << 10, 9), got(600 << 10);
    controller.namespaces[1].hanging_lbas = {3};
    std::optional<BlockStore::Failure> failure;
    store->issue(1, data.data(), data.size(), true);
    store->issue(1, got.data(), got.size(), false);
    store->wait(1, failure);
    CHECK(!failure && got == data && controller.resets == 1, "one reset, not %u", controller.resets);
}

void test_dead_controller_fails_all_commands() {
    for (bool removed : {false, true}) {
        fake::Controller& controller = fresh("0000:01:00.0", {4096});
        auto store = open({"trtype=PCIe traddr=0000:01:00.0"});
        std::vector<uint8_t> data(2 << 20, 1);
        controller.lose_queue_in = 4;
        controller.fails_with_it = true;
        controller.resets_that_fail = 99;
        controller.removed = removed;
        for (int64_t index = 0; index < 3; ++index) {
            std::optional<BlockStore::Failure> failure;
            store->issue(index, data.data(), data.size(), true);
            store->wait(index, failure);
            CHECK(failure && (failure->error == EIO || failure->error == ENODEV), "the write fails with EIO or ENODEV");
        }
    }
    check_all_is_released();
}

void test_threads() {
    fresh("0000:01:00.0", {512});
    auto store = open({"trtype=PCIe traddr=0000:01:00.0"});
    auto work = [&](int64_t index) {
        std::vector<uint8_t> data(1 << 20, static_cast<uint8_t>(index)), got(1 << 20);
        for (int round = 0; round < 10; ++round) {
            std::optional<BlockStore::Failure> failure;
            store->issue(index, data.data(), data.size(), true);
            store->issue(index, got.data(), got.size(), false);
            store->wait(index, failure);
            CHECK(!failure && got == data, "thread %ld reads back its data", long(index));
            store->free(index);
        }
    };
    std::vector<std::thread> threads;
    for (int64_t index = 0; index < 4; ++index) threads.emplace_back(work, index);
    for (std::thread& thread : threads) thread.join();
}

void test_tcp_takes_any_memory() {
    fresh("10.0.0.1", {512}).namespaces[1].data.resize(32 << 20);
    auto store = open({"trtype=TCP adrfam=IPv4 traddr=10.0.0.1 trsvcid=4420"});
    fastio::Mapping mapping(2 << 20);
    CHECK(any_order(*store, mapping.data(), mapping.nbytes(), 100) == 0, "no transfer fails");
    CHECK(fake::world().registered.empty(), "TCP registers no memory for DMA");
}

void test_refusals() {
    CHECK(says(refusal({}), "no transport id"), "an empty list is refused");
    CHECK(says(refusal({"0000:01:00.0"}), "is not an SPDK transport id: expected 'trtype=PCIe"),
          "a plain address is refused");
    CHECK(says(refusal({"trtype=PCIe traddr=0000:77:00.0"}), "does not reach a controller at 'trtype=PCIe"),
          "a missing controller is refused");
    fake::Controller& controller = fresh("0000:01:00.0", {512, 4096});
    CHECK(says(refusal({"trtype=PCIe traddr=0000:01:00.0 ns=3"}), "no active namespace 3"),
          "a missing namespace is refused");
    fake::Namespace& second = controller.namespaces[2];
    second.metadata_bytes = 8;
    for (uint32_t lba_bytes : {4096, 8192}) {
        second.lba_bytes = lba_bytes;
        const std::string reason = refusal({"trtype=PCIe traddr=0000:01:00.0 ns:2"});
        const std::string why = fastio::nvme::unusable_reason(
            {second.data.size() / lba_bytes, lba_bytes, second.metadata_bytes}, kStoreBlock);
        CHECK(reason == "the namespace at 'trtype=PCIe traddr=0000:01:00.0 ns:2'" + why, "%s", reason.c_str());
        second.metadata_bytes = 0;
    }
    controller.namespaces[1].active = controller.namespaces[2].active = false;
    CHECK(says(refusal({"trtype=PCIe traddr=0000:01:00.0"}), "no active namespace"),
          "a controller without active namespace is refused");
    controller.namespaces[1].active = true;
    controller.requests = 0;
    CHECK(says(refusal({"trtype=PCIe traddr=0000:01:00.0"}), "no I/O queue"),
          "a controller without I/O queue is refused");
    check_all_is_released();
}

void test_describes_its_devices() {
    fresh("0000:01:00.0", {4096});
    auto driver = fastio::make_spdk_driver({"trtype=PCIe traddr=0000:01:00.0"});
    auto devices = driver->devices();
    CHECK(devices.size() == 1 && devices[0].blocks == 2048 && devices[0].lba_bytes == 4096, "the device has its size");
    CHECK(devices[0].serial == "FAKE-0000:01:00.0" && devices[0].model == "a model of a controller",
          "serial number and model are trimmed");
    CHECK(driver->largest_transfer() == 128 << 10, "the largest transfer is the namespace's");
    std::vector<uint8_t> small(100);
    CHECK(says(driver->map_memory(small.data(), small.size()), "no whole aligned 2 MiB piece"),
          "memory without a whole 2 MiB piece is refused");
    CHECK(!driver->reaches(small.data(), small.size()), "refused memory is not accessible");
}

// Runs a test of process-wide state in a child process.
template <typename Work>
void in_child(Work work) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        work();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child succeeds");
}

void test_environment_starts_once() {
    const std::string pci = "trtype=PCIe traddr=0000:01:00.0", tcp = "trtype=TCP traddr=10.0.0.1";
    fresh("0000:01:00.0", {512});
    fresh("10.0.0.1", {512});
    in_child([&] {
        fake::world().start_result = -ENOMEM;
        CHECK(says(refusal({pci}), "needs free huge pages"), "PCIe without huge pages is refused");
        fake::world().start_result = 0;
        fake::world().iommu = false;
        CHECK(says(refusal({pci}), "no IOMMU"), "PCIe without IOMMU is refused");
    });
    in_child([&] {
        cpu_set_t before, after;
        sched_getaffinity(0, sizeof(before), &before);
        CHECK(refusal({tcp}).empty() && refusal({tcp, tcp}).empty(), "TCP starts the environment");
        sched_getaffinity(0, sizeof(after), &after);
        CHECK(CPU_EQUAL(&before, &after), "the CPU affinity of this thread is unchanged");
        CHECK(fake::world().starts == 1 && !fake::world().started_with_huge_pages,
              "it starts once, with ordinary pages");
        CHECK(fake::world().processors.front() == '[', "the core mask lists an allowed CPU");
        CHECK(says(refusal({pci}), "for fabrics only"), "PCIe after TCP is refused");
    });
    in_child([&] {
        CHECK(refusal({pci}).empty() && refusal({tcp}).empty() && refusal({pci, tcp}).empty(), "TCP after PCIe works");
        CHECK(fake::world().starts == 1 && fake::world().started_with_huge_pages, "it starts once, with huge pages");
    });
}

void test_poke_writes_durably() {
    fake::Controller& controller = fresh("0000:01:00.0", {512});
    fake::Namespace& space = controller.namespaces[1];
    auto store = open({"trtype=PCIe traddr=0000:01:00.0"});
    std::vector<uint8_t> data(300 << 10), got(300 << 10);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random_source());
    std::optional<BlockStore::Failure> failure;
    store->poke(0, 7, data.data(), data.size(), failure);
    CHECK(!failure && std::memcmp(space.data.data() + 7 * kStoreBlock, data.data(), data.size()) == 0,
          "poke writes the blocks");
    CHECK(space.durable_writes >= 3 && space.durable_writes == space.writes, "all of %u writes are durable",
          space.writes);
    store->peek(0, 7, got.data(), got.size(), failure);
    CHECK(!failure && got == data, "peek reads them back");
    store->issue(1, data.data(), kStoreBlock, true);
    store->wait(1, failure);
    CHECK(space.durable_writes + 1 == space.writes, "other writes of a store are not durable");
}

}  // namespace

int main() {
    CHECK(fastio::why_no_spdk().empty(), "this test is built with FASTIO_SPDK");
    test_environment_starts_once();
    test_any_order_with_faults();
    test_error_status_and_lba();
    test_hanging_commands_are_reset_and_retried();
    test_dead_controller_fails_all_commands();
    test_threads();
    test_refusals();
    test_describes_its_devices();
    test_tcp_takes_any_memory();
    test_poke_writes_durably();
    check_all_is_released();
}
