// Tests the user-space NVMe driver with a model of a controller: order, ring wrap-around, errors, timeouts, restarts.
#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "block_store/devices.hpp"
#include "memory/memory.hpp"
#include "nvme/channel.hpp"
#include "nvme/controller.hpp"
#include "nvme/wire.hpp"
#include "support/errors.hpp"
#include "tests/nvme/nvme_model.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::DeviceCompletion;
using fastio::NvmeChannel;
using fastio::NvmeController;

constexpr uint32_t kTimeoutMs = 1000;
std::mt19937_64 random_source(17);

uint64_t pick(uint64_t low, uint64_t high) { return low + random_source() % (high - low + 1); }

// A model, its driver, and memory that both access.
struct Bench {
    NvmeModel model;
    std::unique_ptr<NvmeController> controller;
    std::unique_ptr<NvmeChannel> channel;
    fastio::Mapping memory{4 << 20};
    uint64_t address = 0;

    explicit Bench(uint64_t nbytes = 4 << 20, unsigned slots = 7, unsigned max_entries = 64)
        : model(nbytes, max_entries) {
        start(slots);
    }
    void start(unsigned slots) {
        controller = std::make_unique<NvmeController>(model, "model", slots, kTimeoutMs);
        channel = std::make_unique<NvmeChannel>(*controller, controller->describe(1));
        address = model.map(memory.data(), memory.nbytes());
    }
    void send(bool write, uint64_t offset, uint32_t nbytes, uint64_t at, uint64_t tag) {
        channel->send(write, offset, nbytes, address + at, tag);
    }
    // Returns the next completion, if one arrives within `ms` of simulated time.
    bool reap(DeviceCompletion& completion, uint64_t ms = 2 * kTimeoutMs) {
        channel->flush();
        for (uint64_t passed = 0; passed <= ms; passed += 10) {
            model.step();
            if (channel->reap(completion)) return true;
            CHECK(!channel->ready(), "ready() implies that reap() returns a completion");
            model.pass(10);
        }
        return false;
    }
};

void test_initialization() {
    Bench bench(4 << 20, 100, 16);
    CHECK(bench.controller->slots() == 15, "queues of 16 entries take 15 commands, not %u", bench.controller->slots());
    CHECK(bench.controller->largest_transfer() == 4096 << 5, "the largest transfer is that of MDTS");
    CHECK(bench.controller->model() == "model of a controller" && bench.controller->serial() == "serial 7",
          "model and serial number are those of Identify");
    CHECK(bench.controller->namespaces() == std::vector<uint32_t>{1}, "namespace 1 is active");
    CHECK(bench.channel->space().lbas == (4 << 20) / 512 && bench.channel->space().lba_bytes == 512,
          "the namespace has its LBAs of 512 bytes");
    CHECK(bench.controller->queues().size() == 2, "each direction has a queue");
    bench.channel.reset();
    bench.controller.reset();
    CHECK(bench.model.shutdowns == 1 && !bench.model.bus_master(), "the controller is shut down in an orderly way");
    CHECK(bench.model.mappings() == 1, "the queues are unmapped");
    bench.model.mdts = 0;
    bench.model.most_queues = 1;
    bench.start(7);
    CHECK(bench.controller->largest_transfer() == 2 << 20, "without MDTS, a PRP list is the limit");
    CHECK(bench.controller->queues().size() == 1, "both directions share one queue");
}

std::string refusal(NvmeModel& model, uint32_t id = 2) {
    try {
        NvmeController controller(model, "model", 7, kTimeoutMs);
        controller.describe(id);
    } catch (const fastio::Refused& refused) {
        CHECK(model.mappings() == 0 && !model.bus_master(), "a refusal leaves no mapping and no bus master: %s",
              refused.what());
        return refused.reason;
    }
    return "";
}

void test_refusals() {
    NvmeModel model(1 << 20);
    const std::string absent = "model/2" + fastio::nvme::unusable_reason({}, fastio::kStoreBlock);
    CHECK(refusal(model) == absent, "%s", refusal(model).c_str());
    model.deaf = true;
    CHECK(refusal(model) == absent && model.resets_seen == 1, "a deaf controller works after a reset");
    model.deaf = true;
    model.resets = false;
    CHECK(refusal(model).find("cannot be reset") != std::string::npos, "%s", refusal(model).c_str());
    model.vanish();
    CHECK(refusal(model).find("does not answer") != std::string::npos, "%s", refusal(model).c_str());
}

// Unusable formats are refused with the message that all drivers share.
void test_unusable_formats() {
    NvmeModel model(1 << 20);
    CHECK(refusal(model, 1).empty(), "%s", refusal(model, 1).c_str());
    for (const auto& [metadata, shift] : {std::pair<uint16_t, uint8_t>{8, 9}, {0, 13}, {0, 8}, {64, 12}}) {
        model.metadata_bytes = metadata;
        model.lba_shift = shift;
        const uint32_t lba_bytes = shift < 9 ? 0 : 1U << shift;
        const std::string why = fastio::nvme::unusable_reason({2048, lba_bytes, metadata}, fastio::kStoreBlock);
        CHECK(!why.empty() && refusal(model, 1) == "model/1" + why, "%s", refusal(model, 1).c_str());
    }
}

// Many passes over both rings, with several commands in flight, of any size and memory alignment.
void test_any_order(unsigned mdts, unsigned most_queues) {
    NvmeModel model(4 << 20);
    Bench bench;
    bench.channel.reset();
    bench.controller.reset();
    bench.model.mdts = mdts;
    bench.model.most_queues = most_queues;
    bench.start(7);
    const uint64_t part = (4 << 20) / 7 / 4096 * 4096;  // the share of each slot in the namespace and the memory
    const uint64_t largest = std::min(bench.controller->largest_transfer(), part - 4096);
    std::vector<std::vector<uint8_t>> expected(7, std::vector<uint8_t>(part, 0));
    struct InFlight {
        bool busy = false, write = false;
        uint64_t offset = 0, nbytes = 0, at = 0;
    };
    std::vector<InFlight> in_flight(7);
    unsigned done = 0;
    for (unsigned sent = 0; done < 3000;) {
        const uint64_t slot = pick(0, 6);
        InFlight& command = in_flight[slot];
        if (!command.busy && sent < 3000) {
            command = {true, pick(0, 1) == 0, 0, pick(1, pick(1, largest / 512)) * 512, 0};
            command.offset = pick(0, (part - command.nbytes) / 512) * 512;
            command.at = pick(0, (part - command.nbytes) / 4) * 4;
            uint8_t* memory = bench.memory.data() + slot * part + command.at;
            for (uint64_t byte = 0; byte < command.nbytes; byte += 4) {
                const auto value = static_cast<uint32_t>(random_source());
                std::memcpy(memory + byte, &value, 4);
            }
            if (command.write) std::memcpy(expected[slot].data() + command.offset, memory, command.nbytes);
            bench.send(command.write, slot * part + command.offset, static_cast<uint32_t>(command.nbytes),
                       slot * part + command.at, slot + 100);
            ++sent;
        }
        if (pick(0, 2) == 0) continue;
        DeviceCompletion completion;
        if (!bench.reap(completion, 0)) continue;
        InFlight& finished = in_flight[completion.tag - 100];
        CHECK(finished.busy && completion.result == int32_t(finished.nbytes) && completion.status == 0, "tag %lu: %d",
              (unsigned long)completion.tag, completion.result);
        finished.busy = false;
        ++done;
        const uint8_t* memory = bench.memory.data() + (completion.tag - 100) * part + finished.at;
        CHECK(std::memcmp(memory, expected[completion.tag - 100].data() + finished.offset, finished.nbytes) == 0,
              "%lu bytes at %lu read back unchanged", (unsigned long)finished.nbytes, (unsigned long)finished.offset);
    }
    CHECK(bench.channel->notes().empty() && bench.model.enabled == 2, "the controller is not restarted");
    CHECK(bench.model.largest_batch > 1, "doorbell writes are batched");
    CHECK(bench.controller->doorbells() < 4 * 3000, "less than 4 doorbell writes per command: %lu",
          (unsigned long)bench.controller->doorbells());
}

void test_error_status() {
    Bench bench;
    bench.send(false, 4 << 20, 4096, 0, 5);
    DeviceCompletion completion;
    CHECK(bench.reap(completion), "the command completes");
    CHECK(completion.tag == 5 && completion.result == -EIO && completion.status == 0x80,
          "the error has status 0x80, not %#x", completion.status);
}

// Two commands are lost, one is recent: the two fail with a timeout, the recent one may be sent again, and the
// controller works after the restart.
void test_time_out() {
    Bench bench;
    bench.model.lose = 2;
    bench.send(true, 0, 4096, 0, 1);
    bench.send(false, 4096, 4096, 4096, 2);
    DeviceCompletion completion;
    CHECK(!bench.reap(completion, kTimeoutMs - 100), "lost commands do not complete before the timeout");
    bench.model.lose = 1;
    bench.send(true, 8192, 4096, 8192, 3);
    int timed_out = 0, again = 0;
    for (int number = 0; number < 3; ++number) {
        CHECK(bench.reap(completion), "completion %d", number);
        timed_out += completion.result == -ETIMEDOUT && completion.status == 0x4371 && completion.tag != 3 ? 1 : 0;
        again += completion.result == -EIO && completion.status == 0x371 && completion.tag == 3 ? 1 : 0;
    }
    CHECK(timed_out == 2 && again == 1, "2 commands time out and 1 may be sent again, not %d and %d", timed_out, again);
    CHECK(bench.model.enabled == 2 && bench.model.resets_seen == 0,
          "the controller is restarted once, without an outside reset");
    CHECK(bench.channel->notes().size() == 1 &&
              bench.channel->notes()[0].find("2 commands timed out") != std::string::npos,
          "%s", bench.channel->notes()[0].c_str());
    bench.send(true, 8192, 4096, 8192, 3);
    CHECK(bench.reap(completion) && completion.result == 4096 && completion.tag == 3,
          "a command completes after the restart");
    CHECK(!bench.reap(completion), "each command completes once");
}

void test_durable_writes() {
    Bench bench;
    DeviceCompletion completion;
    for (const bool durable : {false, true}) {
        bench.channel->send(true, 8192, 8192, bench.address, 1, durable);
        CHECK(bench.reap(completion) && completion.result == 8192, "the write succeeds");
        CHECK(bench.model.durable_writes == (durable ? 1U : 0U), "the controller is asked for durability");
    }
}

void test_duplicate_completion() {
    Bench bench;
    bench.model.answers_twice = true;
    bench.send(true, 0, 4096, 0, 1);
    DeviceCompletion completion;
    CHECK(bench.reap(completion) && completion.result == 4096, "the first completion counts");
    CHECK(!bench.reap(completion), "the second completion is ignored");
    CHECK(bench.channel->notes().size() == 1 && bench.model.enabled == 2, "the controller is restarted");
    bench.send(true, 0, 4096, 0, 2);
    CHECK(bench.reap(completion) && completion.result == 4096 && completion.tag == 2,
          "commands complete after the restart");
}

void test_fatal_and_gone() {
    Bench bench;
    DeviceCompletion completion;
    for (int turn = 0; turn < 20; ++turn) {
        bench.model.fatal = true;
        bench.send(true, 0, 4096, 0, 1);
        CHECK(bench.reap(completion) && completion.result == -EIO && completion.status == 0x371, "%d",
              completion.result);
        bench.send(true, 0, 4096, 0, 2);
        CHECK(bench.reap(completion) && completion.result == 4096, "the controller works again");
    }
    CHECK(bench.channel->notes().size() == 16, "notes are bounded");
    bench.send(true, 0, 4096, 0, 1);
    bench.model.reset();  // a reset from outside
    CHECK(bench.reap(completion, 100) && completion.result == -EIO && completion.status == 0x371,
          "an outside reset is noticed soon");
    bench.send(true, 0, 4096, 0, 2);
    CHECK(bench.reap(completion) && completion.result == 4096, "the controller works again");
    bench.model.resets_seen = 0;
    bench.model.answers_wrong = true;
    bench.send(true, 0, 4096, 0, 1);
    CHECK(bench.reap(completion) && completion.result == -EIO, "a completion of no command causes a restart");
    bench.model.deaf = true;  // needs a reset from outside
    bench.send(true, 0, 4096, 0, 1);
    CHECK(bench.reap(completion) && completion.result == -ETIMEDOUT && bench.model.resets_seen == 1,
          "a deaf controller is reset from outside");
    bench.send(true, 0, 4096, 0, 2);
    CHECK(bench.reap(completion) && completion.result == 4096, "the controller works again");
    bench.send(true, 0, 4096, 0, 1);
    bench.send(false, 0, 4096, 0, 2);
    bench.model.vanish();
    for (int number = 0; number < 2; ++number) {
        CHECK(bench.reap(completion) && completion.result == -ENODEV, "%d", completion.result);
    }
    CHECK(!bench.model.bus_master(), "a missing controller has no access to memory");
    bench.send(true, 0, 4096, 0, 3);
    CHECK(bench.channel->ready() && bench.reap(completion) && completion.result == -ENODEV && completion.tag == 3,
          "further commands fail with ENODEV");
}

}  // namespace

int main() {
    test_initialization();
    test_refusals();
    test_unusable_formats();
    test_any_order(5, 8);
    test_any_order(2, 1);
    test_any_order(0, 8);
    test_error_status();
    test_time_out();
    test_durable_writes();
    test_duplicate_completion();
    test_fatal_and_gone();
}
