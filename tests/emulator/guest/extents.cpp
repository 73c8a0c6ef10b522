#include "extents.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "describe.hpp"
#include "faults.hpp"
#include "host.hpp"
#include "memory/memory.hpp"
#include "model.hpp"
#include "tests/support/check.hpp"

namespace rig {

namespace {

using fastio::kStoreBlock;

constexpr uint64_t kOperationsPerReset = 200;

class Extents {
  public:
    Extents(const std::string& name, const Places& places, const ExtentsOptions& options)
        : name_(name),
          options_(options),
          opened_(open_driver(name, places, options.reset.empty() ? 30'000 : 1000)),
          model_(random_(), sizes()) {
        for (const std::string& place : places) faults_.push_back(faults_of(place));
        for (unsigned device = 0; device < places.size(); ++device) busy_.emplace_back(model_.blocks(device), false);
        slice_blocks_ = std::min<uint64_t>(driver().largest_transfer() / kStoreBlock, 64);
        const uint64_t slice = slice_blocks_ * kStoreBlock;
        if (options.memory == nullptr) {
            host_ = std::make_unique<fastio::Mapping>(driver().depth() * slice);
            memory_ = host_->data();
            slots_.resize(driver().depth());
        } else {
            memory_ = options.memory;
            slots_.resize(std::min<uint64_t>(driver().depth(), options.memory_nbytes / slice));
        }
        const std::string refusal = driver().map_memory(memory_, slots_.size() * slice);
        CHECK(refusal.empty(), "driver %s maps memory: %s", name.c_str(), refusal.c_str());
    }

    void run() {
        sweep(true);  // afterwards the contents of all blocks are known
        mixed_operations();
        sweep(false);
        model_.save(kModelFile);
        std::string text = std::to_string(done_) + " operations, " + std::to_string(blocks_moved_) + " blocks, " +
                           std::to_string(expected_errors_) + " injected errors";
        if (!options_.reset.empty())
            text += ", " + std::to_string(resets_) + " resets, during which " + std::to_string(unexpected_errors_) +
                    " commands failed and " + std::to_string(sent_again_) + " were sent again";
        note(text);
        driver().unmap_memory(memory_);
    }

  private:
    struct Operation {
        bool in_flight = false, write = false;
        unsigned device = 0;
        uint64_t first = 0, count = 0;
        uint32_t generation = 0;
    };

    std::string name_;
    ExtentsOptions options_;
    std::mt19937_64 random_{std::random_device{}()};
    Opened opened_;
    Model model_;
    std::vector<Faults> faults_;
    std::vector<std::vector<bool>> busy_;
    std::unique_ptr<fastio::Mapping> host_;
    uint8_t* memory_ = nullptr;
    uint64_t slice_blocks_ = 0;
    std::vector<Operation> slots_;
    uint32_t generation_ = 0;
    uint64_t in_flight_ = 0, done_ = 0, blocks_moved_ = 0, expected_errors_ = 0, unexpected_errors_ = 0, resets_ = 0,
             sent_again_ = 0;

    fastio::StoreDriver& driver() { return *opened_.driver; }
    uint8_t* slice(size_t slot) { return memory_ + slot * slice_blocks_ * kStoreBlock; }
    uint64_t pick(uint64_t low, uint64_t high) { return low + random_() % (high - low + 1); }

    std::vector<uint64_t> sizes() const {
        std::vector<uint64_t> result;
        for (uint64_t blocks : opened_.blocks) result.push_back(std::min(blocks, options_.most_blocks));
        return result;
    }

    bool is_busy(unsigned device, uint64_t first, uint64_t count) const {
        const auto begin = busy_[device].begin() + static_cast<long>(first);
        return std::find(begin, begin + static_cast<long>(count), true) != begin + static_cast<long>(count);
    }

    void start(size_t slot, bool write, unsigned device, uint64_t first, uint64_t count) {
        Operation& operation = slots_[slot];
        operation = {true, write, device, first, count, write ? ++generation_ : 0};
        std::fill_n(busy_[device].begin() + static_cast<long>(first), count, true);
        for (uint64_t number = 0; number < count; ++number) {
            uint8_t* block = slice(slot) + number * kStoreBlock;
            if (write) {
                put_stamp(block, {device, operation.generation, first + number, model_.run()});
            } else {
                std::memset(block, 0xee, 64);  // old contents must not pass for data that was read
            }
        }
        ++in_flight_;
        send(slot);
    }

    void send(size_t slot) {
        const Operation& operation = slots_[slot];
        driver().send({operation.write, operation.device, opened_.fds[operation.device], slice(slot),
                       static_cast<uint32_t>(operation.count * kStoreBlock), operation.first * kStoreBlock, slot});
    }

    void finish(const fastio::DeviceCompletion& completion) {
        CHECK(completion.tag < slots_.size() && slots_[completion.tag].in_flight,
              "tag %lu of a completion is in flight", static_cast<unsigned long>(completion.tag));
        Operation& operation = slots_[completion.tag];
        // Not an error: the store, too, sends such a command again.
        if (completion.result == -ECANCELED || completion.result == -EAGAIN || completion.result == -EINTR) {
            ++sent_again_;
            return send(completion.tag);
        }
        operation.in_flight = false;
        --in_flight_;
        std::fill_n(busy_[operation.device].begin() + static_cast<long>(operation.first), operation.count, false);
        const Faults& faults = faults_[operation.device];
        const bool must_fail =
            touches(operation.write ? faults.writes : faults.reads, operation.first, operation.count);
        const bool failed = completion.result < 0;
        if (failed) {
            const std::string error = describe(name_, operation.write, operation.device, operation.first, completion);
            CHECK(must_fail || !options_.reset.empty(), "%s", error.c_str());
            if (must_fail && options_.reset.empty())
                check_injected(name_, operation.write, -completion.result, completion.status);
            ++(must_fail ? expected_errors_ : unexpected_errors_);
        } else {
            CHECK(!must_fail, "an injected error of device %u block %lu is reported", operation.device,
                  static_cast<unsigned long>(operation.first));
            CHECK(static_cast<uint64_t>(completion.result) == operation.count * kStoreBlock, "%d of %lu bytes moved",
                  completion.result, static_cast<unsigned long>(operation.count * kStoreBlock));
            blocks_moved_ += operation.count;
        }
        if (operation.write) {
            model_.wrote(operation.device, operation.first, operation.count, operation.generation, failed);
        } else if (!failed) {
            const std::string wrong =
                model_.judge_read(operation.device, operation.first, operation.count, slice(completion.tag));
            CHECK(wrong.empty(), "driver %s: %s", name_.c_str(), wrong.c_str());
        }
    }

    // Takes completions. If there is none, waits for one.
    void reap() {
        fastio::DeviceCompletion completion;
        driver().flush();
        bool any = false;
        while (driver().reap(completion)) {
            finish(completion);
            any = true;
        }
        if (!any && in_flight_ > 0) driver().wait();
    }

    size_t free_slot() {
        for (;;) {
            for (size_t slot = 0; slot < slots_.size(); ++slot)
                if (!slots_[slot].in_flight) return slot;
            reap();
        }
    }

    void sweep(bool write) {
        for (unsigned device = 0; device < model_.devices(); ++device) {
            for (uint64_t first = 0; first < model_.blocks(device); first += slice_blocks_) {
                const uint64_t count = std::min(slice_blocks_, model_.blocks(device) - first);
                start(free_slot(), write, device, first, count);
            }
        }
        while (in_flight_ > 0) reap();
    }

    void mixed_operations() {
        while (done_ < options_.operations) {
            const auto device = static_cast<unsigned>(pick(0, model_.devices() - 1));
            const uint64_t count =
                pick(0, 7) == 0 ? pick(1, slice_blocks_) : pick(1, std::min<uint64_t>(slice_blocks_, 8));
            const uint64_t first = pick(0, model_.blocks(device) - count);
            if (is_busy(device, first, count)) {
                reap();
                continue;
            }
            start(free_slot(), pick(0, 1) == 0, device, first, count);
            ++done_;
            if (options_.reset.empty() || done_ % kOperationsPerReset != 0) continue;
            driver().flush();
            while (in_flight_ > 0 && !recovers_by_itself()) reap();
            reset();
        }
        while (in_flight_ > 0) reap();
    }

    // Whether commands may be in flight during a reset. After a reset, the kernel's NVMe driver sends waiting commands
    // once it has new queues, but before it has configured the shadow doorbells, and QEMU 7.2 then waits forever for
    // the next doorbell write. So this is tested only where the driver under test must recover itself.
    bool recovers_by_itself() const { return name_ == "vfio"; }

    void reset() {
        const int fd = open(options_.reset.c_str(), O_WRONLY);
        CHECK(fd >= 0 && write(fd, "1", 1) == 1, "%s: %s", options_.reset.c_str(), std::strerror(errno));
        close(fd);
        ++resets_;
    }
};

}  // namespace

void test_extents(const std::string& driver, const Places& places, const ExtentsOptions& options) {
    unlink(kModelFile);  // left by another test
    Extents(driver, places, options).run();
}

}  // namespace rig
