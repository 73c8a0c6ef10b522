#include "block_store/vfio.hpp"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "memory/memory.hpp"
#include "support/errors.hpp"
#include "vfio/container.hpp"
#include "vfio/exit.hpp"
#include "vfio/memory.hpp"
#include "vfio/nvme.hpp"

namespace fastio {

namespace {

constexpr uint32_t kTimeoutMs = 30'000;
constexpr unsigned kDepthPerController = 32;

// wait() polls kSpins times, then sleeps between polls, each time longer. It returns after kMaxWait at the latest, so
// that reap() can check for overdue commands.
constexpr unsigned kSpins = 256;
constexpr uint64_t kMinSleep = 10'000, kMaxSleep = 160'000, kMaxWait = 50'000'000;  // ns

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class VfioDriver final : public StoreDriver {
  public:
    VfioDriver(const std::vector<std::string>& names, uint32_t timeout_ms) {
        if (names.empty()) throw Refused("expected at least one NVMe controller, such as 0000:03:00.0");
        depth_ = static_cast<unsigned>(kDepthPerController * names.size());
        // Claim all before opening the first: the devices of one IOMMU group must all leave the kernel's drivers.
        for (const std::string& name : names) claims_.push_back(VfioNvme::claim(name));
        for (size_t number = 0; number < names.size(); ++number) {
            VfioClaim& claim = claims_[number];
            units_.push_back(std::make_unique<VfioNvme>(names[number], std::move(claim), depth_, timeout_ms));
            largest_ = std::min(largest_, units_.back()->largest_transfer());
        }
        // All commands in flight may be for one controller.
        for (const auto& unit : units_) depth_ = std::min(depth_, unit->slots());
        at_exit_.emplace([this] { leave(); });
    }

    ~VfioDriver() override {
        at_exit_.reset();
        for (const auto& unit : units_) unit->controller().shut_down();  // before their memory is unmapped
        for (const auto& [begin, piece] : memory_.pieces()) unmap(piece);
    }

    unsigned depth() const override { return depth_; }
    uint64_t largest_transfer() const override { return largest_; }

    std::string map_memory(uint8_t* memory, uint64_t nbytes) override {
        if (nbytes == 0) return {};
        if (memory_.overlaps(memory, nbytes)) return "overlapping memory is mapped already: unmap it first";
        try {
            const uint64_t before = offset_in_page(memory);
            const uint64_t address = container_.map(memory - before, mapped_bytes(memory, nbytes));
            memory_.add({memory, nbytes, address + before});
        } catch (const Refused& refused) {
            return refused.reason;
        }
        return {};
    }

    void unmap_memory(uint8_t* memory) override {
        if (std::optional<MappedMemory::Piece> piece = memory_.remove(memory)) unmap(*piece);
    }

    bool reaches(const uint8_t* memory, uint64_t nbytes) const override {
        return reinterpret_cast<uintptr_t>(memory) % 4 == 0 && memory_.address_of(memory, nbytes);
    }

    std::vector<Device> devices() const override {
        std::vector<Device> found;
        for (const auto& unit : units_) found.push_back(unit->describe());
        return found;
    }

    void send(const DeviceCommand& command) override {
        NvmeChannel& channel = units_[command.device]->channel();
        const std::optional<uint64_t> address = memory_.address_of(command.memory, command.nbytes);
        if (!address) return channel.complete_with(command.tag, -EFAULT);  // a bounce buffer that could not be mapped
        channel.send(command.write, command.offset, command.nbytes, *address, command.tag, command.durable);
    }

    void flush() override {
        for (const auto& unit : units_) unit->channel().flush();
    }

    void wait() override {
        for (unsigned spin = 0; spin < kSpins; ++spin) {
            if (any_ready()) return;
            relax();
        }
        uint64_t sleep_ns = kMinSleep;
        for (uint64_t slept = 0; slept < kMaxWait && !any_ready(); slept += sleep_ns) {
            const timespec time{0, static_cast<long>(sleep_ns)};
            nanosleep(&time, nullptr);
            sleep_ns = std::min(2 * sleep_ns, kMaxSleep);
        }
    }

    bool reap(DeviceCompletion& completion) override {
        for (const auto& unit : units_) {
            if (unit->channel().reap(completion)) return true;
        }
        return false;
    }

    unsigned unsent() const override { return 0; }

    std::vector<std::string> notes() const override {
        std::vector<std::string> found;
        for (const auto& unit : units_) {
            const std::vector<std::string>& notes = unit->channel().notes();
            found.insert(found.end(), notes.begin(), notes.end());
        }
        return found;
    }

    uint64_t doorbells() const override {
        uint64_t count = 0;
        for (const auto& unit : units_) count += unit->doorbells();
        return count;
    }

  private:
    VfioContainer& container_ = VfioContainer::instance();
    std::vector<VfioClaim> claims_;  // of devices that failed to open: returned after all others are closed
    std::vector<std::unique_ptr<VfioNvme>> units_;
    MappedMemory memory_;
    unsigned depth_ = 0;
    uint64_t largest_ = uint64_t{1} << 30;
    std::optional<LeaveAtExit> at_exit_;

    void leave() noexcept {
        for (const auto& unit : units_) unit->leave();
    }

    uint64_t offset_in_page(const uint8_t* memory) const {
        return reinterpret_cast<uintptr_t>(memory) % container_.page_bytes();
    }

    uint64_t mapped_bytes(const uint8_t* memory, uint64_t nbytes) const {
        return round_up(offset_in_page(memory) + nbytes, container_.page_bytes());
    }

    void unmap(const MappedMemory::Piece& piece) {
        container_.unmap(piece.address - offset_in_page(piece.memory), mapped_bytes(piece.memory, piece.nbytes));
    }

    bool any_ready() const {
        for (const auto& unit : units_) {
            if (unit->channel().ready()) return true;
        }
        return false;
    }
};

}  // namespace

std::unique_ptr<StoreDriver> make_vfio_driver(const std::vector<std::string>& devices, uint32_t timeout_ms) {
    return std::make_unique<VfioDriver>(devices, timeout_ms);
}

std::unique_ptr<StoreDriver> make_vfio_driver(const std::vector<std::string>& devices) {
    return make_vfio_driver(devices, kTimeoutMs);
}

}  // namespace fastio
