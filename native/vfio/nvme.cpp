#include "vfio/nvme.hpp"

#include <time.h>

#include <charconv>
#include <chrono>

#include "block_store/devices.hpp"
#include "support/errors.hpp"
#include "vfio/container.hpp"

namespace fastio {

namespace {

std::string pci_of(const std::string& name) { return name.substr(0, name.find('/')); }

NvmeNamespace choose(NvmeController& controller, const std::string& name) {
    const size_t slash = name.find('/');
    if (slash != std::string::npos) {
        uint32_t id = 0;
        const char* end = name.data() + name.size();
        const auto [stopped, error] = std::from_chars(name.data() + slash + 1, end, id);
        if (error != std::errc() || stopped != end || id == 0) {
            throw Refused(name + ": expected a PCI address, optionally with a namespace, such as 0000:03:00.0/1");
        }
        return controller.describe(id);
    }
    const std::vector<uint32_t> ids = controller.namespaces();
    if (ids.empty()) throw Refused(name + ": the controller has no active namespace");
    if (ids.size() > 1) {
        std::string text = name + ": the controller has several namespaces, choose one:";
        for (uint32_t id : ids) text += " " + name + "/" + std::to_string(id);
        throw Refused(text);
    }
    return controller.describe(ids.front());
}

}  // namespace

uint64_t VfioNvmeHost::map(uint8_t* memory, uint64_t nbytes) { return VfioContainer::instance().map(memory, nbytes); }

void VfioNvmeHost::unmap(uint64_t address, uint64_t nbytes) noexcept {
    VfioContainer::instance().unmap(address, nbytes);
}

uint64_t VfioNvmeHost::now_ms() const {
    using std::chrono::steady_clock;
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch()).count());
}

void VfioNvmeHost::pause() {
    const timespec time{0, 100'000};
    nanosleep(&time, nullptr);
}

VfioClaim VfioNvme::claim(const std::string& name) { return {pci_of(name), VfioRole::kNvme}; }

VfioNvme::VfioNvme(const std::string& name, VfioClaim&& claim, unsigned slots, uint32_t timeout_ms)
    : name_(name),
      host_(std::move(claim)),
      controller_(host_, pci_of(name), slots, timeout_ms),
      channel_(controller_, choose(controller_, name)) {}

StoreDriver::Device VfioNvme::describe() const {
    const NvmeNamespace& space = channel_.space();
    return {name_, space.lbas / (kStoreBlock / space.lba_bytes), space.lba_bytes, controller_.model(),
            controller_.serial()};
}

void VfioNvme::leave() noexcept {
    controller_.shut_down();
    host_.leave();
}

}  // namespace fastio
