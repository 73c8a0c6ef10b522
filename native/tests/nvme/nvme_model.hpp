// A model of an NVMe controller in memory, written from the specification, independent of the driver: registers, queues
// with phase bits, PRPs. It completes commands in any order, checks that it accesses only mapped memory, and injects
// faults.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "nvme/host.hpp"
#include "nvme/wire.hpp"
#include "tests/support/check.hpp"

class NvmeModel final : public fastio::NvmeHost {
  public:
    static constexpr uint32_t kLbaBytes = 512;

    // Faults.
    unsigned lose = 0;           // so many I/O commands are never completed
    bool fatal = false;          // CSTS.CFS is set until the controller is disabled
    bool deaf = false;           // ignores its registers until it is reset from outside
    bool resets = true;          // whether a reset from outside works
    bool answers_wrong = false;  // once, completes a command that was not sent
    bool answers_twice = false;  // once, completes a command twice
    unsigned mdts = 5;
    unsigned most_queues = 8;
    uint16_t metadata_bytes = 0;  // per LBA, as reported by Identify
    uint8_t lba_shift = 9;        // as reported by Identify
    std::vector<uint8_t> blocks;  // its only namespace, whose id is 1

    // Counts.
    unsigned durable_writes = 0;  // with Force Unit Access
    unsigned enabled = 0, resets_seen = 0, shutdowns = 0, largest_batch = 0;

    explicit NvmeModel(uint64_t nbytes, unsigned max_entries = 64) : blocks(nbytes) {
        registers_.resize(8192 / sizeof(uint64_t));
        set64(0x00, (max_entries - 1) | 1ULL << 16 | 1ULL << 24 | 1ULL << 37);  // MQES, CQR, TO = 500 ms, NVM commands
    }

    volatile uint8_t* registers() override { return bytes(); }
    uint64_t register_bytes() const override { return 8192; }

    uint64_t map(uint8_t* memory, uint64_t nbytes) override {
        const uint64_t address = next_address_;
        next_address_ += nbytes + (1 << 20);
        mapped_[address] = {memory, nbytes};
        return address;
    }

    void unmap(uint64_t address, uint64_t nbytes) noexcept override {
        CHECK(mapped_.count(address) == 1 && mapped_[address].nbytes == nbytes, "only mapped memory is unmapped");
        CHECK((get32(0x1c) & 1) == 0 || !bus_master_, "memory is unmapped only when the controller cannot access it");
        mapped_.erase(address);
    }

    void set_bus_master(bool on) noexcept override { bus_master_ = on; }

    bool reset() noexcept override {
        ++resets_seen;
        if (!resets) return false;
        set32(0x14, 0);
        forget();
        deaf = fatal = false;
        return true;
    }

    uint64_t now_ms() const override { return now_ms_; }
    void pause() override { step(), ++now_ms_; }
    void pass(uint64_t ms) { now_ms_ += ms; }
    void vanish() { std::memset(bytes(), 0xff, 8192), deaf = true, resets = false; }
    bool bus_master() const { return bus_master_; }
    size_t mappings() const { return mapped_.size(); }

    // Reads the registers and doorbells, and completes some of the commands in flight.
    void step() {
        if (deaf) return;
        read_configuration();
        if ((get32(0x1c) & 1) == 0) return;
        if (fatal) return set32(0x1c, get32(0x1c) | 2);
        fetch();
        while (!waiting_.empty() && random_() % 4 != 0) {
            const size_t number = random_() % waiting_.size();
            const Waiting taken = waiting_[number];
            waiting_.erase(waiting_.begin() + static_cast<long>(number));
            execute(taken);
        }
    }

  private:
    struct Mapped {
        uint8_t* memory;
        uint64_t nbytes;
    };
    struct Ring {
        uint64_t address = 0;
        uint32_t entries = 0, at = 0;
        uint16_t phase = 1;
    };
    struct Waiting {
        uint32_t queue;
        fastio::nvme::Command command;
    };

    std::vector<uint64_t> registers_;
    std::map<uint64_t, Mapped> mapped_;
    uint64_t next_address_ = 0x100000000;
    bool bus_master_ = false;
    uint64_t now_ms_ = 1000;
    std::map<uint32_t, Ring> submission_, completion_;
    std::deque<Waiting> waiting_;
    std::mt19937_64 random_{5};

    uint8_t* bytes() { return reinterpret_cast<uint8_t*>(registers_.data()); }
    uint32_t get32(uint64_t offset) {
        return __atomic_load_n(reinterpret_cast<uint32_t*>(bytes() + offset), __ATOMIC_ACQUIRE);
    }
    void set32(uint64_t offset, uint32_t value) { std::memcpy(bytes() + offset, &value, sizeof value); }
    void set64(uint64_t offset, uint64_t value) { std::memcpy(bytes() + offset, &value, sizeof value); }
    uint64_t get64(uint64_t offset) { return get32(offset) | static_cast<uint64_t>(get32(offset + 4)) << 32; }

    uint8_t* reach(uint64_t address, uint64_t nbytes) {
        CHECK(bus_master_, "the controller accesses memory only with its bus master bit set");
        auto after = mapped_.upper_bound(address);
        CHECK(after != mapped_.begin(), "address %#lx is mapped", (unsigned long)address);
        const auto& [begin, piece] = *std::prev(after);
        CHECK(address - begin + nbytes <= piece.nbytes, "%#lx lies in mapped memory", (unsigned long)address);
        return piece.memory + (address - begin);
    }

    void forget() {
        submission_.clear();
        completion_.clear();
        waiting_.clear();
        std::memset(bytes() + 0x1000, 0, 0x1000);
        set32(0x1c, 0);
    }

    void read_configuration() {
        const uint32_t configuration = get32(0x14), status = get32(0x1c);
        const bool enable = (configuration & 1) != 0;
        if (enable && (status & 1) == 0) {
            CHECK((configuration >> 16 & 15) == 6 && (configuration >> 20 & 15) == 4, "the entry sizes are 64 and 16");
            CHECK((configuration >> 7 & 15) == 0, "the page size is 4 KiB");
            forget();  // drop doorbell writes made while disabled
            submission_[0] = {get64(0x28), (get32(0x24) & 0xfff) + 1};
            completion_[0] = {get64(0x30), (get32(0x24) >> 16 & 0xfff) + 1};
            set32(0x1c, 1);
            ++enabled;
        } else if (!enable && (status & 1) != 0) {
            forget();
            fatal = false;
        }
        if (enable && (configuration >> 14 & 3) == 1 && (get32(0x1c) >> 2 & 3) == 0) {
            set32(0x1c, get32(0x1c) | 2 << 2);
            ++shutdowns;
        }
    }

    void fetch() {
        for (auto& [number, ring] : submission_) {
            const uint32_t tail = get32(0x1000 + 8 * number);
            CHECK(tail < ring.entries, "doorbell value %u is in a queue of %u", tail, ring.entries);
            unsigned batch = 0;
            for (; ring.at != tail; ring.at = (ring.at + 1) % ring.entries, ++batch) {
                fastio::nvme::Command command;
                std::memcpy(&command, reach(ring.address + ring.at * 64, 64), 64);
                if (number != 0 && lose > 0) {
                    --lose;
                    continue;
                }
                waiting_.push_back({number, command});
            }
            if (number != 0 && batch > largest_batch) largest_batch = batch;
        }
    }

    void execute(const Waiting& taken) {
        uint32_t result = 0;
        const uint16_t status = taken.queue == 0 ? administer(taken.command, result) : move(taken.command);
        Ring& ring = completion_[taken.queue];
        const uint32_t head = get32(0x1000 + 8 * taken.queue + 4);
        CHECK((ring.at + 1) % ring.entries != head, "completion queue %u is not full", taken.queue);
        fastio::nvme::Completion completion{};
        completion.result = result;
        completion.sq_id = static_cast<uint16_t>(taken.queue);
        completion.id = taken.command.id;
        if (answers_wrong && taken.queue != 0) {
            completion.id = 999;
            answers_wrong = false;
        }
        post(ring, completion, status);
        if (answers_twice && taken.queue != 0) {
            post(ring, completion, status);
            answers_twice = false;
        }
    }

    void post(Ring& ring, const fastio::nvme::Completion& completion, uint16_t status) {
        uint8_t* place = reach(ring.address + ring.at * 16, 16);
        std::memcpy(place, &completion, 14);
        const auto field = static_cast<uint16_t>(status << 1 | ring.phase);
        __atomic_store_n(reinterpret_cast<uint16_t*>(place + 14), field, __ATOMIC_RELEASE);
        ring.at = (ring.at + 1) % ring.entries;
        if (ring.at == 0) ring.phase ^= 1;
    }

    uint16_t administer(const fastio::nvme::Command& command, uint32_t& result) {
        const uint32_t number = command.cdw10 & 0xffff, entries = (command.cdw10 >> 16) + 1;
        switch (command.opcode) {
            case 0x06:
                return identify(command);
            case 0x09:
                CHECK(number == 7, "the feature is 7, not %u", number);
                result = std::min(command.cdw11 & 0xffff, most_queues - 1);
                result |= result << 16;
                return 0;
            case 0x05:
                CHECK(command.cdw11 == 1, "the completion queue is contiguous, without interrupts");
                if (entries > (get64(0) & 0xffff) + 1) return 0x102;
                completion_[number] = {command.prp1, entries};
                return 0;
            case 0x01:
                CHECK(completion_.count(command.cdw11 >> 16) == 1 && (command.cdw11 & 1) == 1,
                      "the submission queue is contiguous and has a completion queue");
                submission_[number] = {command.prp1, entries};
                return 0;
            default:
                return 0x01;
        }
    }

    uint16_t identify(const fastio::nvme::Command& command) {
        uint8_t* page = reach(command.prp1, 4096);
        std::memset(page, 0, 4096);
        auto put = [page](size_t offset, auto value) { std::memcpy(page + offset, &value, sizeof value); };
        if (command.cdw10 == 1) {
            std::memcpy(page + 4, "serial 7            ", 20);
            std::memcpy(page + 24, "model of a controller                   ", 40);
            page[77] = static_cast<uint8_t>(mdts);
            put(516, uint32_t{1});
        } else if (command.cdw10 == 2) {
            put(0, uint32_t{1});
        } else if (command.nsid == 1) {
            put(0, blocks.size() / kLbaBytes);
            page[26] = 1;
            put(128 + 4, metadata_bytes);
            put(128 + 4 + 2, lba_shift);
        }
        return 0;
    }

    // NVMe base specification, 4.1.1: PRP1 may begin inside a page; PRP2 is the second page or the list of further
    // pages.
    uint16_t move(const fastio::nvme::Command& command) {
        CHECK(command.nsid == 1 && (command.opcode == 1 || command.opcode == 2), "opcode %u", command.opcode);
        const uint64_t offset = (command.cdw10 | static_cast<uint64_t>(command.cdw11) << 32) * kLbaBytes;
        const uint64_t nbytes = ((command.cdw12 & 0xffff) + uint64_t{1}) * kLbaBytes;
        if (command.opcode == 1 && (command.cdw12 >> 30 & 1) != 0) ++durable_writes;
        CHECK(mdts == 0 || nbytes <= uint64_t{4096} << mdts, "%lu bytes are within MDTS", (unsigned long)nbytes);
        if (offset + nbytes > blocks.size()) return 0x80;
        CHECK(command.prp1 % 4 == 0, "PRP1 %#lx is a multiple of 4", (unsigned long)command.prp1);
        uint64_t moved = 0;
        auto part = [&](uint64_t address, uint64_t most) {
            const uint64_t count = std::min(most, nbytes - moved);
            uint8_t* memory = reach(address, count);
            if (command.opcode == 1) std::memcpy(blocks.data() + offset + moved, memory, count);
            if (command.opcode == 2) std::memcpy(memory, blocks.data() + offset + moved, count);
            moved += count;
        };
        part(command.prp1, 4096 - command.prp1 % 4096);
        if (moved < nbytes && nbytes - moved <= 4096) {
            CHECK(command.prp2 % 4096 == 0, "PRP2 is page-aligned");
            part(command.prp2, 4096);
        } else if (moved < nbytes) {
            CHECK(command.prp2 % 4096 == 0, "the driver's PRP lists begin at a page");
            for (uint64_t entry = 0; moved < nbytes; ++entry) {
                CHECK(entry < 512, "the list fits in its page");
                uint64_t page = 0;
                std::memcpy(&page, reach(command.prp2 + entry * 8, 8), 8);
                CHECK(page % 4096 == 0, "entry %lu is page-aligned", (unsigned long)entry);
                part(page, 4096);
            }
        }
        return 0;
    }
};
