#include "stores.hpp"

#include <algorithm>
#include <cerrno>
#include <thread>

#include "blobs.hpp"
#include "faults.hpp"
#include "host.hpp"
#include "support/errors.hpp"

namespace rig {

namespace {

using fastio::BlockStore;
using fastio::kStoreBlock;

constexpr uint64_t kMiB = 1 << 20;

void check_none(const std::string& driver, const std::optional<BlockStore::Failure>& failure) {
    CHECK(!failure, "%s", describe(driver, *failure).c_str());
}

}  // namespace

void test_queue_full(const std::string& driver, const Places& places) {
    constexpr int kBlobs = 1500;
    auto store = open_store(driver, places);
    Blobs blobs(*store, driver);
    for (int number = 0; number < kBlobs; ++number) blobs.write(number, blobs.pick(1, 3 * kStoreBlock));
    const uint64_t most = store->stats().commands_under_way;
    CHECK(most >= kBlobs, "at least 1500 commands are queued or in flight, not %lu", static_cast<unsigned long>(most));
    for (int number = 0; number < kBlobs; ++number) check_none(driver, blobs.wait(number));
    for (int number = kBlobs - 1; number >= 0; --number) blobs.check(number);
    note(std::to_string(most) + " commands at once");
}

void test_splitting(const std::string& driver, const Places& places) {
    constexpr uint64_t kBlob = 2 * kMiB + 5 * kStoreBlock;
    const uint64_t largest = open_driver(driver, places).driver->largest_transfer() / kStoreBlock;
    fastio::Mapping written(kBlob), read(kBlob);
    for (uint64_t at = 0; at < kBlob; ++at) written.data()[at] = static_cast<uint8_t>(at * 31 + at / kStoreBlock);
    auto store = open_store(driver, places);
    if (driver != "uring") store->map(written.data(), kBlob);  // io_uring registers only one buffer here
    store->map(read.data(), kBlob);
    store->set_recording(true);
    std::optional<BlockStore::Failure> failure;
    store->issue(1, written.data(), kBlob, true);
    store->wait(1, failure);
    check_none(driver, failure);
    store->issue(1, read.data(), kBlob, false);
    store->wait(1, failure);
    check_none(driver, failure);
    CHECK(std::equal(read.data(), read.data() + kBlob, written.data()), "the blob reads back unchanged");
    uint64_t blocks = 0;
    const std::vector<BlockStore::Traced> trace = store->trace();
    for (const BlockStore::Traced& traced : trace) {
        CHECK(traced.blocks <= largest, "a command of %lu blocks is within the limit of %lu",
              static_cast<unsigned long>(traced.blocks), static_cast<unsigned long>(largest));
        blocks += traced.blocks;
    }
    CHECK(blocks == 2 * kBlob / kStoreBlock, "the commands cover the blob, not %lu blocks",
          static_cast<unsigned long>(blocks));
    CHECK(store->stats().bytes_bounced == 0, "aligned mapped memory is not bounced");
    if (knows_status(driver)) CHECK(largest * kStoreBlock == 16 << 10, "the limit is the controller's MDTS, 16 KiB");
    note(std::to_string(trace.size()) + " commands of at most " + std::to_string(largest) + " blocks");
}

void test_capacity(const std::string& driver, const Places& places) {
    constexpr uint64_t kBlob = 300 * kStoreBlock;
    uint64_t room = 0;
    for (uint64_t blocks : open_driver(driver, places).blocks) room += blocks * kStoreBlock;
    auto store = open_store(driver, places);
    Blobs blobs(*store, driver);
    int number = 0;
    uint64_t used = 0;
    for (;; ++number) {
        const uint64_t nbytes = std::min(kBlob, std::max(room - used, kStoreBlock));
        try {
            blobs.write(number, nbytes);
        } catch (const fastio::SystemError& error) {
            CHECK(error.error == ENOSPC, "errno %d: %s", error.error, error.what());
            blobs.forget(number);
            break;
        }
        check_none(driver, blobs.wait(number));
        used += nbytes;
    }
    CHECK(used == room, "all blocks can be used: %lu of %lu bytes", static_cast<unsigned long>(used),
          static_cast<unsigned long>(room));
    CHECK(!store->contains(number), "a refused blob leaves no index");
    for (int old = 0; old < number; ++old) blobs.check(old);
    blobs.free(number / 2);
    blobs.write(number, kBlob);
    blobs.check(number);
    note(std::to_string(used / kMiB) + " MiB in " + std::to_string(number) + " blobs");
}

void test_threads(const std::string& driver, const Places& places) {
    constexpr int kThreads = 4, kRounds = 250;
    auto store = open_store(driver, places);
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreads; ++number) {
        threads.emplace_back([&store, &driver, number] {
            Blobs blobs(*store, driver, number * int64_t{1} << 32);
            for (int round = 0; round < kRounds; ++round) {
                blobs.write(round, blobs.pick(0, 9) == 0 ? blobs.pick(0, kMiB) : blobs.pick(0, 5 * kStoreBlock));
                if (round >= 4) blobs.check(round - 4);
                if (round >= 8) blobs.free(round - 8);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    note(std::to_string(kThreads) + " threads, " + std::to_string(store->stats().commands_written) + " writes");
}

void test_order(const std::string& driver, const Places& places) {
    constexpr int kLayers = 40;
    constexpr uint64_t kLayer = 30 * kStoreBlock;
    auto store = open_store(driver, places);
    store->set_recording(true);
    Blobs blobs(*store, driver);
    for (int iteration = 0; iteration < 2; ++iteration) {
        for (int layer = 0; layer < kLayers; ++layer) {
            blobs.write(layer, kLayer);
            check_none(driver, blobs.wait(layer));
        }
        for (int layer = kLayers - 1; layer >= 0; --layer) {
            blobs.check(layer);
            blobs.free(layer);
        }
    }
    uint64_t next = 0, end = kLayers * kLayer / kStoreBlock, within = 0, wrapped = 0;
    bool writing = true;
    for (const BlockStore::Traced& traced : store->trace()) {
        if (traced.write && !writing) next = within = 0, ++wrapped;
        writing = traced.write;
        if (traced.write) {
            CHECK(traced.lba == next, "got a write at block %lu, expected %lu", static_cast<unsigned long>(traced.lba),
                  static_cast<unsigned long>(next));
            next += traced.blocks;
            continue;
        }
        const uint64_t layer_blocks = kLayer / kStoreBlock, expected = next - layer_blocks + within;
        CHECK(traced.lba == expected, "got a read at block %lu, expected %lu", static_cast<unsigned long>(traced.lba),
              static_cast<unsigned long>(expected));
        within += traced.blocks;
        if (within == layer_blocks) next -= layer_blocks, within = 0;
    }
    CHECK(wrapped == 1 && next == 0 && end > 0, "two iterations use the same blocks, down to block 0, not %lu",
          static_cast<unsigned long>(next));
    const BlockStore::Stats stats = store->stats();
    CHECK(stats.bytes_written == 2 * kLayers * kLayer && stats.bytes_read == stats.bytes_written,
          "%lu bytes written, %lu read", static_cast<unsigned long>(stats.bytes_written),
          static_cast<unsigned long>(stats.bytes_read));
    note(std::to_string(store->trace().size()) + " commands in order, write amplification 1");
}

void test_bad_blocks(const std::string& driver, const Places& places) {
    const Faults faults = faults_of(places.at(0));
    auto store = open_store(driver, places);
    Blobs blobs(*store, driver);
    constexpr uint64_t kBlocks = 100;
    uint64_t failures = 0;
    std::string words;
    for (uint64_t number = 0; number < 40; ++number) {  // blob n lies in blocks 100 n to 100 n + 99
        blobs.write(static_cast<int64_t>(number), kBlocks * kStoreBlock);
        const auto failure = blobs.wait(static_cast<int64_t>(number));
        const bool bad = touches(faults.writes, number * kBlocks, kBlocks);
        CHECK(failure.has_value() == bad, "the write of blob %lu fails if a block is bad",
              static_cast<unsigned long>(number));
        if (!bad && !touches(faults.reads, number * kBlocks, kBlocks)) blobs.check(static_cast<int64_t>(number));
        if (!failure) continue;
        check_injected(driver, true, failure->error, failure->status);
        CHECK(failure->write && failure->device == 0 && failure->lba / kBlocks == number, "%s",
              describe(driver, *failure).c_str());
        words = describe(driver, *failure);
        ++failures;
    }
    CHECK(failures > 0, "at least one write fails");
    for (uint64_t block : faults.reads) {
        std::vector<uint8_t> memory(kBlocks * kStoreBlock);
        const auto index = static_cast<int64_t>(block / kBlocks);
        if (touches(faults.writes, block / kBlocks * kBlocks, kBlocks)) continue;
        store->issue(index, memory.data(), memory.size(), false);
        const auto failure = blobs.wait(index);
        CHECK(failure && !failure->write && failure->lba / kBlocks == block / kBlocks,
              "reading bad block %lu fails with its place", static_cast<unsigned long>(block));
        check_injected(driver, false, failure->error, failure->status);
    }
    note(words);
}

}  // namespace rig
