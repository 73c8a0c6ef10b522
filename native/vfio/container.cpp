#include "vfio/container.hpp"

#include <fcntl.h>
#include <linux/vfio.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "support/errors.hpp"
#include "vfio/in_use.hpp"
#include "vfio/sysfs.hpp"

namespace fastio {

namespace {

constexpr const char* kContainer = "/dev/vfio/vfio";
constexpr int kBusyTries = 50;  // every 100 ms, while something else resets the device

std::string group_path(unsigned number) { return "/dev/vfio/" + std::to_string(number); }

// Returns the devices that make a group unusable: those bound to a driver other than VFIO's, except bridges.
std::string blocking_devices(unsigned number) {
    const std::string folder = "/sys/kernel/iommu_groups/" + std::to_string(number) + "/devices";
    std::string found;
    for (const std::string& pci : sysfs::names(folder)) {
        const std::string driver = sysfs::link(folder + "/" + pci + "/driver");
        if (driver.empty() || driver == "vfio-pci" || driver == "pcieport" || driver == "pci-stub") continue;
        found += (found.empty() ? "" : ", ") + pci + " (driver " + driver + ")";
    }
    return found;
}

// Opens a device of a group. The kernel refuses that while something else resets, binds or unbinds the device.
int open_device(int group, const std::string& pci) {
    for (int tries = 0; tries < kBusyTries; ++tries) {
        const int fd = ioctl(group, VFIO_GROUP_GET_DEVICE_FD, pci.c_str());
        if (fd >= 0) return fd;
        if (errno != EAGAIN) throw Refused(pci + ": VFIO_GROUP_GET_DEVICE_FD: " + std::strerror(errno));
        usleep(100'000);
    }
    throw Refused(pci + ": another program, or the kernel, resets or unbinds this device (see dmesg): try again later");
}

}  // namespace

VfioContainer& VfioContainer::instance() {
    static auto* instance = new VfioContainer;  // never destroyed: stores may be closed at exit
    return *instance;
}

VfioContainer::VfioContainer() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] {
                       instance().forget_in_child();
                       instance().mutex_.unlock();
                   });
}

void VfioContainer::forget_in_child() noexcept {
    for (auto& [number, group] : groups_) {
        for (auto& [pci, fd] : group.devices) ::close(fd);
        ::close(group.fd);
        for (VfioClaim& claim : group.claims) claim.disclaim();
    }
    groups_.clear();
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    addresses_ = IovaAllocator();
}

void VfioContainer::open_container() {
    if (fd_ >= 0) return;
    int fd = ::open(kContainer, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        const int error = errno;
        const char* cure = error == ENOENT || error == ENODEV ? "modprobe vfio-pci" : "only root may open it";
        throw Refused(std::string(kContainer) + ": " + std::strerror(error) + ": " + cure);
    }
    if (ioctl(fd, VFIO_GET_API_VERSION) != VFIO_API_VERSION ||
        ioctl(fd, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) <= 0) {
        ::close(fd);
        throw Refused("this kernel's VFIO has no type 1 IOMMU: modprobe vfio_iommu_type1");
    }
    fd_ = fd;
}

VfioContainer::Group& VfioContainer::open_group(unsigned number, const std::string& pci) {
    if (auto found = groups_.find(number); found != groups_.end()) return found->second;
    const std::string path = group_path(number);
    int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        const int error = errno;
        std::string text = pci + ": " + path + ": " + std::strerror(error);
        if (error == EBUSY) {
            const std::string who = processes_with(path);
            text += ": in use by " + (who.empty() ? "another process" : who);
        }
        if (error == EACCES || error == EPERM) text += ": sudo chown $USER " + path;
        throw Refused(text);
    }
    groups_[number].fd = fd;
    vfio_group_status status{};
    status.argsz = sizeof status;
    if (ioctl(fd, VFIO_GROUP_GET_STATUS, &status) < 0 || !(status.flags & VFIO_GROUP_FLAGS_VIABLE)) {
        throw Refused(pci + ": its IOMMU group " + std::to_string(number) +
                      " has other devices that the kernel uses: " + blocking_devices(number) +
                      ". One process must own a whole group: unbind them, name them as devices of the same store, or "
                      "move the drive to a slot with its own group");
    }
    if (ioctl(fd, VFIO_GROUP_SET_CONTAINER, &fd_) < 0) {
        throw Refused(pci + ": its IOMMU group cannot join this process's container: " + std::strerror(errno));
    }
    if (groups_.size() == 1 && ioctl(fd_, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) < 0) {
        const int error = errno;
        throw Refused(pci + ": VFIO_SET_IOMMU: " + std::strerror(error) +
                      (error == EPERM ? ": the platform cannot remap interrupts; if you trust the drive: echo 1 > "
                                        "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
                                      : ""));
    }
    read_iova_ranges();
    return groups_[number];
}

int VfioContainer::open(VfioClaim&& claim) {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string pci = claim.pci();
    const unsigned number = claim.group();
    try {
        open_container();
        Group& group = open_group(number, pci);
        if (group.devices.count(pci) != 0) throw Refused(pci + ": this process has it open already");
        const int fd = open_device(group.fd, pci);
        group.devices.emplace(pci, fd);
        claim.take_over();
        group.claims.push_back(std::move(claim));
        return fd;
    } catch (...) {
        close_if_empty(number);
        throw;
    }
}

void VfioContainer::close(const std::string& pci) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [number, group] : groups_) {
        auto found = group.devices.find(pci);
        if (found == group.devices.end()) continue;
        ::close(found->second);
        group.devices.erase(found);
        return close_if_empty(number);
    }
}

// Closes the group's descriptor first: while it is open, no kernel driver can bind a device of the group.
void VfioContainer::close_if_empty(unsigned number) noexcept {
    auto found = groups_.find(number);
    if (found != groups_.end() && found->second.devices.empty()) {
        ::close(found->second.fd);
        groups_.erase(found);  // destroys its claims
    }
    if (!groups_.empty() || fd_ < 0) return;
    ::close(fd_);
    fd_ = -1;
    addresses_ = IovaAllocator();
}

}  // namespace fastio
