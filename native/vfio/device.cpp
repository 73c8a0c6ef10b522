#include "vfio/device.hpp"

#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "support/errors.hpp"
#include "vfio/container.hpp"

namespace fastio {

namespace {

constexpr int kResetTries = 50;  // every 100 ms, while something else resets it

vfio_region_info region(int fd, unsigned number, const std::string& pci) {
    vfio_region_info info{};
    info.argsz = sizeof info;
    info.index = number;
    if (ioctl(fd, VFIO_DEVICE_GET_REGION_INFO, &info) < 0) {
        throw Refused(pci + ": VFIO_DEVICE_GET_REGION_INFO: " + std::strerror(errno));
    }
    return info;
}

}  // namespace

VfioDevice::VfioDevice(VfioClaim&& claim)
    : pci_(claim.pci()), owner_(getpid()), fd_(VfioContainer::instance().open(std::move(claim))) {
    try {
        config_ = region(fd_, VFIO_PCI_CONFIG_REGION_INDEX, pci_).offset;
    } catch (...) {
        leave();
        throw;
    }
    set_bus_master(false);
}

VfioDevice::~VfioDevice() {
    if (getpid() != owner_) return;
    leave();
    for (const Bar& bar : bars_) munmap(bar.memory, bar.nbytes);
}

VfioDevice::Bar VfioDevice::map_bar(unsigned number) {
    const vfio_region_info info = region(fd_, VFIO_PCI_BAR0_REGION_INDEX + number, pci_);
    const std::string what = pci_ + ": BAR " + std::to_string(number);
    if (info.size == 0) throw Refused(what + ": the device has none");
    if ((info.flags & VFIO_REGION_INFO_FLAG_MMAP) == 0) {
        throw Refused(what + ": it cannot be mapped (it is smaller than a page, or not memory)");
    }
    void* memory = mmap(nullptr, info.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(info.offset));
    if (memory == MAP_FAILED) throw Refused(what + ": mmap: " + std::strerror(errno));
    madvise(memory, info.size, MADV_DONTFORK);
    bars_.push_back({static_cast<uint8_t*>(memory), info.size});
    return bars_.back();
}

void VfioDevice::set_bus_master(bool on) noexcept {
    const auto at = static_cast<off_t>(config_ + PCI_COMMAND);
    uint16_t command = 0;
    // Errors are ignored: a device that does not respond is gone, and leave() resets one that ignores the write.
    if (pread(fd_, &command, sizeof command, at) != sizeof command) return;
    command |= PCI_COMMAND_MEMORY;
    command = static_cast<uint16_t>(on ? command | PCI_COMMAND_MASTER : command & ~PCI_COMMAND_MASTER);
    [[maybe_unused]] const ssize_t written = pwrite(fd_, &command, sizeof command, at);
}

bool VfioDevice::reset() noexcept {
    for (int tries = 0; tries < kResetTries; ++tries) {
        if (ioctl(fd_, VFIO_DEVICE_RESET) == 0) return true;
        if (errno != EAGAIN) return false;
        usleep(100'000);
    }
    return false;
}

void VfioDevice::leave() noexcept {
    if (fd_ < 0 || getpid() != owner_) return;
    fd_ = -1;
    // Replace the mappings: the kernel releases a device from VFIO only when they are gone, too.
    for (const Bar& bar : bars_) {
        mmap(bar.memory, bar.nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
    }
    VfioContainer::instance().close(pci_);
}

}  // namespace fastio
