// The driver "spdk" against a model of SPDK in memory (fake_spdk/, NOT SPDK): full queues, errors with their status,
// lost queues, resets, timeouts, memory that no DMA reaches. It says nothing of SPDK itself: see
// tests/block_store/test_spdk_store.py.
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

void all_is_given_back() {
    CHECK(fake::world().connected == 0 && fake::world().queues == 0, "a controller or a queue was left");
    CHECK(fake::world().registered.empty(), "memory stayed registered");
}

// Random writes, reads and frees against a plain table. Gives how many failed; what did not fail must be right.
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
            uint8_t* from = data.data();  // not registered, at any address: bounced
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
            std::vector<uint8_t> came(found->second.size());
            uint8_t* to = pick(0, 1) == 0 && came.size() <= most ? memory : came.data();
            store.issue(index, to, came.size(), false);
            store.wait(index, failure);
            if (failure) {
                ++failures;
            } else {
                CHECK(std::memcmp(to, found->second.data(), came.size()) == 0, "blob %ld came back changed",
                      long(index));
            }
        } else {
            store.free(index);
            blobs.erase(found);
        }
    }
    return failures;
}

void it_moves_what_it_is_given() {
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
        CHECK(fake::world().connected == 2, "two namespaces of one controller connect once");
        store->map(mapping.data(), mapping.nbytes());
        int failures = any_order(*store, mapping.data(), mapping.nbytes(), 2500);
        CHECK((failures > 0) == is_bad, "%s: %d failures", fault, failures);
        BlockStore::Stats stats = store->stats();
        CHECK(stats.bytes_bounced > 0 && stats.bytes_bounced < stats.bytes_written + stats.bytes_read,
              "memory that was mapped goes as it lies, other memory does not");
        store->unmap(mapping.data());
        store.reset();
        all_is_given_back();
    }
    CHECK(first.reconnects > 2 && first.resets > 2, "%u reconnects, %u resets", first.reconnects, first.resets);
}

void errors_keep_their_status_and_place() {
    fake::Controller& controller = fresh("0000:01:00.0", {512});
    auto store = open({"trtype=PCIe traddr=0000:01:00.0"});
    std::vector<uint8_t> data(1 << 20, 7);
    std::optional<BlockStore::Failure> failure;
    store->issue(1, data.data(), data.size(), true);
    store->wait(1, failure);
    CHECK(!failure, "a write");
    controller.namespaces[1].bad_lbas[8 * 70 + 3] = 2 << 8 | 0x81;  // media error: unrecovered read error
    store->issue(1, data.data(), data.size(), false);
    store->wait(1, failure);
    CHECK(failure && failure->error == EIO && !failure->write && failure->status == (2 << 8 | 0x81), "an error");
    CHECK(failure->lba == 64 && failure->device == 0, "of the command at 64, not %lu", (unsigned long)failure->lba);
    controller.namespaces[1].bad_lbas.clear();
    store->issue(1, data.data(), data.size(), false);
    store->wait(1, failure);
    CHECK(!failure, "another try");
}

void what_hangs_is_reset_and_sent_again() {
    fake::Controller& controller = fresh("0000:01:00.0", {4096});
    auto store = open({"trtype=PCIe traddr=0000:01:00.0"});
    std::vector<uint8_t> data(600 << 10, 9), came(600 << 10);
    controller.namespaces[1].hanging_lbas = {3};
    std::optional<BlockStore::Failure> failure;
    store->issue(1, data.data(), data.size(), true);
    store->issue(1, came.data(), came.size(), false);
    store->wait(1, failure);
    CHECK(!failure && came == data && controller.resets == 1, "%u resets", controller.resets);
}

void a_dead_controller_ends_everything_with_an_error() {
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
            CHECK(failure && (failure->error == EIO || failure->error == ENODEV), "a write to nobody");
        }
    }
    all_is_given_back();
}

void threads_share_it() {
    fresh("0000:01:00.0", {512});
    auto store = open({"trtype=PCIe traddr=0000:01:00.0"});
    auto work = [&](int64_t index) {
        std::vector<uint8_t> data(1 << 20, static_cast<uint8_t>(index)), came(1 << 20);
        for (int round = 0; round < 10; ++round) {
            std::optional<BlockStore::Failure> failure;
            store->issue(index, data.data(), data.size(), true);
            store->issue(index, came.data(), came.size(), false);
            store->wait(index, failure);
            CHECK(!failure && came == data, "thread %ld", long(index));
            store->free(index);
        }
    };
    std::vector<std::thread> threads;
    for (int64_t index = 0; index < 4; ++index) threads.emplace_back(work, index);
    for (std::thread& thread : threads) thread.join();
}

void over_tcp_any_memory_does() {
    fresh("10.0.0.1", {512}).namespaces[1].data.resize(32 << 20);
    auto store = open({"trtype=TCP adrfam=IPv4 traddr=10.0.0.1 trsvcid=4420"});
    fastio::Mapping mapping(2 << 20);
    CHECK(any_order(*store, mapping.data(), mapping.nbytes(), 100) == 0, "nothing was injected");
    CHECK(fake::world().registered.empty(), "a socket needs no DMA");
}

void what_cannot_be_is_refused() {
    CHECK(says(refusal({}), "no transport id"), "none");
    CHECK(says(refusal({"0000:01:00.0"}), "is no transport id of SPDK: expected 'trtype=PCIe"), "an address alone");
    CHECK(says(refusal({"trtype=PCIe traddr=0000:77:00.0"}), "does not reach a controller at 'trtype=PCIe"), "nobody");
    fake::Controller& controller = fresh("0000:01:00.0", {512, 4096});
    CHECK(says(refusal({"trtype=PCIe traddr=0000:01:00.0 ns=3"}), "no active namespace 3"), "no such namespace");
    fake::Namespace& second = controller.namespaces[2];
    second.metadata_bytes = 8;
    for (uint32_t lba_bytes : {4096, 8192}) {
        second.lba_bytes = lba_bytes;
        const std::string told = refusal({"trtype=PCIe traddr=0000:01:00.0 ns:2"});
        const std::string why =
            fastio::nvme::unusable({second.data.size() / lba_bytes, lba_bytes, second.metadata_bytes}, kStoreBlock);
        CHECK(told == "the namespace at 'trtype=PCIe traddr=0000:01:00.0 ns:2'" + why, "%s", told.c_str());
        second.metadata_bytes = 0;
    }
    controller.namespaces[1].active = controller.namespaces[2].active = false;
    CHECK(says(refusal({"trtype=PCIe traddr=0000:01:00.0"}), "no active namespace"), "none is active");
    controller.namespaces[1].active = true;
    controller.requests = 0;
    CHECK(says(refusal({"trtype=PCIe traddr=0000:01:00.0"}), "no I/O queue"), "no queue");
    all_is_given_back();
}

void it_says_what_it_drives() {
    fresh("0000:01:00.0", {4096});
    auto driver = fastio::make_spdk_driver({"trtype=PCIe traddr=0000:01:00.0"});
    auto devices = driver->devices();
    CHECK(devices.size() == 1 && devices[0].blocks == 2048 && devices[0].lba_bytes == 4096, "its size");
    CHECK(devices[0].serial == "FAKE-0000:01:00.0" && devices[0].model == "a model of a controller", "trimmed");
    CHECK(driver->largest_transfer() == 128 << 10, "mdts");
    std::vector<uint8_t> small(100);
    CHECK(says(driver->adopt(small.data(), small.size()), "no whole aligned 2 MiB piece"), "too small for DMA");
    CHECK(!driver->reaches(small.data(), small.size()), "not adopted");
}

// What holds for a process, in one of its own.
template <typename Work>
void apart(Work work) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        work();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child failed");
}

void the_environment_starts_once() {
    const std::string pci = "trtype=PCIe traddr=0000:01:00.0", tcp = "trtype=TCP traddr=10.0.0.1";
    fresh("0000:01:00.0", {512});
    fresh("10.0.0.1", {512});
    apart([&] {
        fake::world().start_result = -ENOMEM;
        CHECK(says(refusal({pci}), "needs free huge pages"), "no huge pages");
        fake::world().start_result = 0;
        fake::world().iommu = false;
        CHECK(says(refusal({pci}), "no IOMMU"), "no IOMMU");
    });
    apart([&] {
        cpu_set_t before, after;
        sched_getaffinity(0, sizeof(before), &before);
        CHECK(refusal({tcp}).empty() && refusal({tcp, tcp}).empty(), "over TCP");
        sched_getaffinity(0, sizeof(after), &after);
        CHECK(CPU_EQUAL(&before, &after), "this thread's processors changed");
        CHECK(fake::world().starts == 1 && !fake::world().started_with_huge_pages, "once, with ordinary pages");
        CHECK(fake::world().processors.front() == '[', "one processor that may be used");
        CHECK(says(refusal({pci}), "for fabrics only"), "too late");
    });
    apart([&] {
        CHECK(refusal({pci}).empty() && refusal({tcp}).empty() && refusal({pci, tcp}).empty(), "in this order");
        CHECK(fake::world().starts == 1 && fake::world().started_with_huge_pages, "once, with huge pages");
    });
}

}  // namespace

int main() {
    CHECK(fastio::why_no_spdk().empty(), "this test is built with FASTIO_SPDK");
    the_environment_starts_once();
    it_moves_what_it_is_given();
    errors_keep_their_status_and_place();
    what_hangs_is_reset_and_sent_again();
    a_dead_controller_ends_everything_with_an_error();
    threads_share_it();
    what_cannot_be_is_refused();
    it_says_what_it_drives();
    over_tcp_any_memory_does();
    all_is_given_back();
}
