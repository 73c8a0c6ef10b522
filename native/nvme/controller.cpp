// The controller's registers: enable, disable, reset, shutdown. controller_admin.cpp has the commands.
#include "nvme/controller.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "support/errors.hpp"

namespace fastio {

namespace {

// Offsets in BAR 0 (NVMe base specification, 3.1).
constexpr uint64_t kCapabilities = 0x00;
constexpr uint64_t kConfiguration = 0x14;
constexpr uint64_t kStatus = 0x1c;
constexpr uint64_t kAdminAttributes = 0x24;
constexpr uint64_t kAdminCommands = 0x28;
constexpr uint64_t kAdminCompletions = 0x30;
constexpr uint64_t kDoorbells = 0x1000;

// CC: 4 KiB pages, NVM command set, round-robin arbitration; entries of 64 and 16 bytes.
constexpr uint32_t kEnable = 1;
constexpr uint32_t kEntrySizes = 6 << 16 | 4 << 20;
constexpr uint32_t kNormalShutdown = 1 << 14;
// CSTS
constexpr uint32_t kReady = 1, kFatal = 2, kShutdownMask = 3 << 2, kShutdownDone = 2 << 2;
constexpr uint32_t kGone = 0xffffffff;  // the value that reads from a missing device return

constexpr unsigned kPairs = 2;
unsigned max_entries(uint64_t capabilities) { return static_cast<unsigned>(capabilities & 0xffff) + 1; }

}  // namespace

uint32_t NvmeController::read32(uint64_t offset) const {
    return *reinterpret_cast<volatile uint32_t*>(host_.registers() + offset);
}

void NvmeController::write32(uint64_t offset, uint32_t value) {
    *reinterpret_cast<volatile uint32_t*>(host_.registers() + offset) = value;
}

// In two writes, because a controller need not support 8-byte accesses.
void NvmeController::write64(uint64_t offset, uint64_t value) {
    write32(offset, static_cast<uint32_t>(value));
    write32(offset + 4, static_cast<uint32_t>(value >> 32));
}

uint64_t NvmeController::read_capabilities() const {
    const uint32_t low = read32(kCapabilities);
    if (low == kGone) throw Refused(name_ + ": the controller does not answer (its registers read as all ones)");
    return low | static_cast<uint64_t>(read32(kCapabilities + 4)) << 32;
}

NvmeController::NvmeController(NvmeHost& host, std::string name, unsigned slots, uint32_t timeout_ms)
    : host_(host),
      name_(std::move(name)),
      timeout_ms_(timeout_ms),
      capabilities_(read_capabilities()),
      slots_(std::min(slots, max_entries(capabilities_) - 1)),
      entries_(slots_ + 1),
      prps_(kPairRings + kPairs * pair_bytes()),
      memory_(prps_ + slots_ * kPage) {
    if (host_.register_bytes() < kDoorbells) throw Refused(name_ + ": BAR 0 is too small for an NVMe controller");
    const uint64_t smallest_page = kPage << (capabilities_ >> 48 & 15);
    if (smallest_page > kPage) {
        throw Refused(name_ + ": the controller's pages have at least " + std::to_string(smallest_page) +
                      " bytes; 4096 are needed");
    }
    madvise(memory_.data(), memory_.nbytes(), MADV_DONTFORK);
    admin_ = make_queue(0, 0, kAdminEntries);
    for (unsigned pair = 0; pair < kPairs; ++pair) {
        pairs_.push_back(make_queue(pair + 1, kPairRings + pair * pair_bytes(), entries_));
    }
    base_ = host_.map(memory_.data(), memory_.nbytes());
    std::string refusal = restart();
    if (refusal.empty()) {
        try {
            identify_controller();
            return;
        } catch (const Refused& refused) {
            refusal = refused.reason;
        }
    }
    shut_down();
    host_.unmap(base_, memory_.nbytes());
    throw Refused(refusal);
}

NvmeController::~NvmeController() {
    shut_down();
    host_.unmap(base_, memory_.nbytes());
}

volatile uint32_t* NvmeController::doorbell(unsigned queue, bool completion) const {
    const uint64_t stride = uint64_t{4} << (capabilities_ >> 32 & 15);
    const uint64_t offset = kDoorbells + (2 * queue + (completion ? 1 : 0)) * stride;
    if (offset + 4 > host_.register_bytes()) throw Refused(name_ + ": BAR 0 has no doorbells for two queues");
    return reinterpret_cast<volatile uint32_t*>(host_.registers() + offset);
}

NvmeQueue NvmeController::make_queue(unsigned number, uint64_t offset, unsigned entries) const {
    auto* commands = reinterpret_cast<nvme::Command*>(at(offset));
    auto* completions =
        reinterpret_cast<nvme::Completion*>(at(offset + round_up(entries * sizeof(nvme::Command), kPage)));
    return {commands, completions, entries, doorbell(number, false), doorbell(number, true)};
}

uint64_t NvmeController::doorbells() const {
    uint64_t count = 0;
    for (const NvmeQueue& pair : pairs_) count += pair.doorbells();
    return count;
}

const char* NvmeController::stop_reason() const {
    const uint32_t status = read32(kStatus);
    if (status == kGone) return "it is gone";
    if ((status & kFatal) != 0) return "it reported a fatal error";
    return (status & kReady) != 0 ? "" : "something else reset it";
}

// Waits until the masked bits of CSTS equal `value`. Returns false after the limit, or if the controller is gone.
bool NvmeController::wait_for(uint32_t mask, uint32_t value, uint64_t limit_ms) const {
    const uint64_t begin = host_.now_ms();
    for (;;) {
        const uint32_t status = read32(kStatus);
        if (status == kGone) return false;
        if ((status & mask) == value) return true;
        if (host_.now_ms() - begin > limit_ms) return false;
        host_.pause();
    }
}

void NvmeController::disable() {
    write32(kConfiguration, read32(kConfiguration) & ~kEnable);
    if (wait_for(kReady, 0, ready_timeout_ms())) return;
    throw Refused(name_ + ": the controller did not stop within " + std::to_string(ready_timeout_ms()) + " ms");
}

void NvmeController::enable() {
    disable();
    admin_.clear();
    for (NvmeQueue& pair : pairs_) pair.clear();
    write32(kAdminAttributes, (kAdminEntries - 1) << 16 | (kAdminEntries - 1));
    write64(kAdminCommands, base_);
    write64(kAdminCompletions, base_ + kPage);
    device_write_fence();
    write32(kConfiguration, kEntrySizes | kEnable);
    if (!wait_for(kReady | kFatal, kReady, ready_timeout_ms())) {
        throw Refused(name_ + ": the controller did not become ready within " + std::to_string(ready_timeout_ms()) +
                      " ms (its status register is " + std::to_string(read32(kStatus)) + ")");
    }
    create_queues();
}

std::string NvmeController::restart() noexcept {
    std::string reason;
    try {
        host_.set_bus_master(true);
        enable();
        return {};
    } catch (const Refused& refused) {
        reason = refused.reason;
    }
    try {
        if (host_.reset()) {  // reset a controller that does not respond from outside
            host_.set_bus_master(true);
            enable();
            return {};
        }
        reason += "; it cannot be reset either";
    } catch (const Refused& refused) {
        reason = refused.reason;
    }
    host_.set_bus_master(false);  // it must not access memory that is reused from now on
    return reason;
}

void NvmeController::shut_down() noexcept {
    const uint32_t configuration = read32(kConfiguration);
    if (configuration == kGone || (configuration & kEnable) == 0) return;
    write32(kConfiguration, (configuration & ~(3U << 14)) | kNormalShutdown);
    wait_for(kShutdownMask, kShutdownDone, std::max<uint64_t>(shutdown_ms_, 5000));
    try {
        disable();
    } catch (const Refused&) {
        host_.reset();
    }
    host_.set_bus_master(false);
}

}  // namespace fastio
