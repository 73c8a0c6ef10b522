// The user-level NVMe driver against a model of a controller: order, wrap-around, errors, time-outs, restarts.
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

// A model, what drives it, and memory that both reach.
struct Bench {
    NvmeModel model;
    std::unique_ptr<NvmeController> controller;
    std::unique_ptr<NvmeChannel> channel;
    fastio::Mapping memory{4 << 20};
    uint64_t address = 0;

    explicit Bench(uint64_t nbytes = 4 << 20, unsigned slots = 7, unsigned most_entries = 64)
        : model(nbytes, most_entries) {
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
    // The next completion, if one comes while `ms` pass.
    bool reap(DeviceCompletion& completion, uint64_t ms = 2 * kTimeoutMs) {
        channel->flush();
        for (uint64_t passed = 0; passed <= ms; passed += 10) {
            model.step();
            if (channel->reap(completion)) return true;
            CHECK(!channel->ready(), "ready, and nothing to reap");
            model.pass(10);
        }
        return false;
    }
};

void test_bringing_up() {
    Bench bench(4 << 20, 100, 16);
    CHECK(bench.controller->slots() == 15, "%u commands in queues of 16", bench.controller->slots());
    CHECK(bench.controller->largest_transfer() == 4096 << 5, "MDTS");
    CHECK(bench.controller->model() == "model of a controller" && bench.controller->serial() == "serial 7", "identity");
    CHECK(bench.controller->namespaces() == std::vector<uint32_t>{1}, "namespaces");
    CHECK(bench.channel->space().lbas == (4 << 20) / 512 && bench.channel->space().lba_bytes == 512, "LBAs");
    CHECK(bench.controller->queues().size() == 2, "a queue for each direction");
    bench.channel.reset();
    bench.controller.reset();
    CHECK(bench.model.shutdowns == 1 && !bench.model.bus_master(), "an orderly end");
    CHECK(bench.model.mappings() == 1, "the queues are unmapped");
    bench.model.mdts = 0;
    bench.model.most_queues = 1;
    bench.start(7);
    CHECK(bench.controller->largest_transfer() == 2 << 20, "no MDTS: what a PRP list can tell");
    CHECK(bench.controller->queues().size() == 1, "one queue for both");
}

std::string refusal(NvmeModel& model, uint32_t id = 2) {
    try {
        NvmeController controller(model, "model", 7, kTimeoutMs);
        controller.describe(id);
    } catch (const fastio::Refused& refused) {
        CHECK(model.mappings() == 0 && !model.bus_master(), "something is left: %s", refused.what());
        return refused.reason;
    }
    return "";
}

void test_refusals() {
    NvmeModel model(1 << 20);
    const std::string absent = "model/2" + fastio::nvme::unusable({}, fastio::kStoreBlock);
    CHECK(refusal(model) == absent, "%s", refusal(model).c_str());
    model.deaf = true;
    CHECK(refusal(model) == absent && model.resets_seen == 1, "reset, and alive");
    model.deaf = true;
    model.resets = false;
    CHECK(refusal(model).find("can it be reset") != std::string::npos, "%s", refusal(model).c_str());
    model.vanish();
    CHECK(refusal(model).find("does not answer") != std::string::npos, "%s", refusal(model).c_str());
}

// What a store cannot use is refused in the words that every driver has for it.
void test_formats_that_are_of_no_use() {
    NvmeModel model(1 << 20);
    CHECK(refusal(model, 1).empty(), "%s", refusal(model, 1).c_str());
    for (const auto& [metadata, shift] : {std::pair<uint16_t, uint8_t>{8, 9}, {0, 13}, {0, 8}, {64, 12}}) {
        model.metadata_bytes = metadata;
        model.lba_shift = shift;
        const uint32_t lba_bytes = shift < 9 ? 0 : 1U << shift;
        const std::string why = fastio::nvme::unusable({2048, lba_bytes, metadata}, fastio::kStoreBlock);
        CHECK(!why.empty() && refusal(model, 1) == "model/1" + why, "%s", refusal(model, 1).c_str());
    }
}

// Many turns of both rings, with several commands under way, whatever their size and their memory's alignment.
void test_any_order(unsigned mdts, unsigned most_queues) {
    NvmeModel model(4 << 20);
    Bench bench;
    bench.channel.reset();
    bench.controller.reset();
    bench.model.mdts = mdts;
    bench.model.most_queues = most_queues;
    bench.start(7);
    const uint64_t part = (4 << 20) / 7 / 4096 * 4096;  // of the namespace and of the memory, each slot has its own
    const uint64_t largest = std::min(bench.controller->largest_transfer(), part - 4096);
    std::vector<std::vector<uint8_t>> expected(7, std::vector<uint8_t>(part, 0));
    struct Under {
        bool busy = false, write = false;
        uint64_t offset = 0, nbytes = 0, at = 0;
    };
    std::vector<Under> under(7);
    unsigned done = 0;
    for (unsigned sent = 0; done < 3000;) {
        const uint64_t slot = pick(0, 6);
        Under& mine = under[slot];
        if (!mine.busy && sent < 3000) {
            mine = {true, pick(0, 1) == 0, 0, pick(1, pick(1, largest / 512)) * 512, 0};
            mine.offset = pick(0, (part - mine.nbytes) / 512) * 512;
            mine.at = pick(0, (part - mine.nbytes) / 4) * 4;
            uint8_t* memory = bench.memory.data() + slot * part + mine.at;
            for (uint64_t byte = 0; byte < mine.nbytes; byte += 4) {
                const auto value = static_cast<uint32_t>(random_source());
                std::memcpy(memory + byte, &value, 4);
            }
            if (mine.write) std::memcpy(expected[slot].data() + mine.offset, memory, mine.nbytes);
            bench.send(mine.write, slot * part + mine.offset, static_cast<uint32_t>(mine.nbytes), slot * part + mine.at,
                       slot + 100);
            ++sent;
        }
        if (pick(0, 2) == 0) continue;
        DeviceCompletion completion;
        if (!bench.reap(completion, 0)) continue;
        Under& its = under[completion.tag - 100];
        CHECK(its.busy && completion.result == int32_t(its.nbytes) && completion.status == 0, "tag %lu: %d",
              (unsigned long)completion.tag, completion.result);
        its.busy = false;
        ++done;
        const uint8_t* memory = bench.memory.data() + (completion.tag - 100) * part + its.at;
        CHECK(std::memcmp(memory, expected[completion.tag - 100].data() + its.offset, its.nbytes) == 0,
              "%lu bytes at %lu came back changed", (unsigned long)its.nbytes, (unsigned long)its.offset);
    }
    CHECK(bench.channel->notes().empty() && bench.model.enabled == 2, "no restart");
    CHECK(bench.model.largest_batch > 1, "doorbells are not batched");
    CHECK(bench.controller->doorbells() < 4 * 3000, "%lu doorbells", (unsigned long)bench.controller->doorbells());
}

void test_an_error_has_its_status() {
    Bench bench;
    bench.send(false, 4 << 20, 4096, 0, 5);
    DeviceCompletion completion;
    CHECK(bench.reap(completion), "no completion");
    CHECK(completion.tag == 5 && completion.result == -EIO && completion.status == 0x80, "status %x",
          completion.status);
}

// Two commands are lost, one is young: the first fail, the other may be sent again, and all goes on.
void test_time_out() {
    Bench bench;
    bench.model.lose = 2;
    bench.send(true, 0, 4096, 0, 1);
    bench.send(false, 4096, 4096, 4096, 2);
    DeviceCompletion completion;
    CHECK(!bench.reap(completion, kTimeoutMs - 100), "lost");
    bench.model.lose = 1;
    bench.send(true, 8192, 4096, 8192, 3);
    int timed_out = 0, again = 0;
    for (int number = 0; number < 3; ++number) {
        CHECK(bench.reap(completion), "completion %d", number);
        timed_out += completion.result == -ETIMEDOUT && completion.status == 0x4371 && completion.tag != 3 ? 1 : 0;
        again += completion.result == -EIO && completion.status == 0x371 && completion.tag == 3 ? 1 : 0;
    }
    CHECK(timed_out == 2 && again == 1, "%d timed out, %d again", timed_out, again);
    CHECK(bench.model.enabled == 2 && bench.model.resets_seen == 0, "restarted once, by its own register");
    CHECK(bench.channel->notes().size() == 1 &&
              bench.channel->notes()[0].find("2 commands timed out") != std::string::npos,
          "%s", bench.channel->notes()[0].c_str());
    bench.send(true, 8192, 4096, 8192, 3);
    CHECK(bench.reap(completion) && completion.result == 4096 && completion.tag == 3, "after the restart");
    CHECK(!bench.reap(completion), "one command, one completion");
}

void test_a_second_completion() {
    Bench bench;
    bench.model.answers_twice = true;
    bench.send(true, 0, 4096, 0, 1);
    DeviceCompletion completion;
    CHECK(bench.reap(completion) && completion.result == 4096, "the first");
    CHECK(!bench.reap(completion), "the second must not count");
    CHECK(bench.channel->notes().size() == 1 && bench.model.enabled == 2, "it is not to be trusted: restarted");
    bench.send(true, 0, 4096, 0, 2);
    CHECK(bench.reap(completion) && completion.result == 4096 && completion.tag == 2, "and goes on");
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
        CHECK(bench.reap(completion) && completion.result == 4096, "it came back");
    }
    CHECK(bench.channel->notes().size() == 16, "notes are bounded");
    bench.send(true, 0, 4096, 0, 1);
    bench.model.reset();  // somebody else's
    CHECK(bench.reap(completion, 100) && completion.result == -EIO && completion.status == 0x371, "noticed soon");
    bench.send(true, 0, 4096, 0, 2);
    CHECK(bench.reap(completion) && completion.result == 4096, "it came back");
    bench.model.resets_seen = 0;
    bench.model.answers_wrong = true;
    bench.send(true, 0, 4096, 0, 1);
    CHECK(bench.reap(completion) && completion.result == -EIO, "a completion of nothing");
    bench.model.deaf = true;  // it needs a reset from outside
    bench.send(true, 0, 4096, 0, 1);
    CHECK(bench.reap(completion) && completion.result == -ETIMEDOUT && bench.model.resets_seen == 1, "deaf");
    bench.send(true, 0, 4096, 0, 2);
    CHECK(bench.reap(completion) && completion.result == 4096, "it came back");
    bench.send(true, 0, 4096, 0, 1);
    bench.send(false, 0, 4096, 0, 2);
    bench.model.vanish();
    for (int number = 0; number < 2; ++number) {
        CHECK(bench.reap(completion) && completion.result == -ENODEV, "%d", completion.result);
    }
    CHECK(!bench.model.bus_master(), "it must reach no memory any more");
    bench.send(true, 0, 4096, 0, 3);
    CHECK(bench.channel->ready() && bench.reap(completion) && completion.result == -ENODEV && completion.tag == 3,
          "gone");
}

}  // namespace

int main() {
    test_bringing_up();
    test_refusals();
    test_formats_that_are_of_no_use();
    test_any_order(5, 8);
    test_any_order(2, 1);
    test_any_order(0, 8);
    test_an_error_has_its_status();
    test_time_out();
    test_a_second_completion();
    test_fatal_and_gone();
}
