#include "peer.hpp"

#include <algorithm>

#include "describe.hpp"
#include "host.hpp"
#include "memory/memory.hpp"
#include "tests/support/check.hpp"
#include "vfio/peer.hpp"

namespace rig {

void test_peer(const std::string& driver, const Places& places) {
    constexpr uint64_t kMiB = 1 << 20, kBlob = 3 * kMiB + 7 * fastio::kStoreBlock;
    constexpr uint8_t kUntouched = 0xa5;
    const fastio::VfioPeer bar(kPeer, kPeerBar);
    CHECK(bar.nbytes() == 16 * kMiB, "the BAR has 16 MiB, not %lu bytes", static_cast<unsigned long>(bar.nbytes()));
    const uint64_t middle = bar.nbytes() / 4, back = bar.nbytes() / 2;
    // The disk could access these buffers: they are mapped, too.
    fastio::Mapping host(2 * kBlob);
    std::fill_n(host.data(), host.nbytes(), kUntouched);
    auto store = open_store(driver, places);
    store->map(bar.address(), bar.nbytes());
    store->map(host.data(), host.nbytes());
    store->set_recording(true);
    std::optional<fastio::BlockStore::Failure> failure;
    for (bool write : {true, false}) {
        store->issue(1, bar.address() + (write ? 0 : middle), kBlob, write);
        store->wait(1, failure);
        CHECK(!failure, "%s", describe(driver, *failure).c_str());
    }
    const uint64_t raw = store->trace().front().lba + 2 * kBlob / fastio::kStoreBlock;
    store->free(1);
    store->poke(0, raw, bar.address() + middle, kBlob, failure);  // as volumes do
    CHECK(!failure, "%s", describe(driver, *failure).c_str());
    store->peek(0, raw, bar.address() + back, kBlob, failure);
    CHECK(!failure, "%s", describe(driver, *failure).c_str());
    const fastio::BlockStore::Stats stats = store->stats();
    CHECK(stats.bytes_bounced == 0 && stats.bytes_written == 2 * kBlob && stats.bytes_read == 2 * kBlob,
          "%lu bytes written, %lu read, %lu bounced", static_cast<unsigned long>(stats.bytes_written),
          static_cast<unsigned long>(stats.bytes_read), static_cast<unsigned long>(stats.bytes_bounced));
    CHECK(std::all_of(host.data(), host.data() + host.nbytes(), [](uint8_t byte) { return byte == kUntouched; }),
          "host memory is unchanged");
    std::printf("rig: peer from=0 back=%lu disk_offset=%lu nbytes=%lu\n", static_cast<unsigned long>(back),
                static_cast<unsigned long>(raw * fastio::kStoreBlock), static_cast<unsigned long>(kBlob));
    store->close();  // before the peer is closed
    note(std::to_string(stats.commands_written) + " writes, " + std::to_string(stats.commands_read) +
         " reads, no host buffer changed");
}

}  // namespace rig
