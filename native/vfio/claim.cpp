#include "vfio/claim.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "support/errors.hpp"
#include "vfio/in_use.hpp"
#include "vfio/started.hpp"
#include "vfio/sysfs.hpp"

namespace fastio {

namespace {

constexpr const char* kVfio = "vfio-pci";
constexpr const char* kNoteFolder = "/run/fastio";
constexpr uint64_t kStartMs = 60'000;  // what Linux gives an admin command

std::string note_path(const std::string& pci) { return std::string(kNoteFolder) + "/vfio-" + pci; }

std::string driver_of(const std::string& pci) { return sysfs::link(sysfs::pci_folder(pci) + "/driver"); }

std::string error_text(const std::string& path, int error) {
    std::string text = path + ": " + std::strerror(error);
    if (error == EACCES || error == EPERM) text += "; this needs root";
    return text;
}

// Binds the device to a driver. Returns why that failed, or "".
std::string bind_driver(const std::string& pci, const std::string& driver, bool for_vfio) {
    const std::string chooser = sysfs::pci_folder(pci) + "/driver_override";
    if (int error = sysfs::write(chooser, for_vfio ? driver : "\n"); error != 0) return error_text(chooser, error);
    const std::string had = driver_of(pci);
    if (!had.empty()) {
        const std::string unbind = sysfs::driver_folder(had) + "/unbind";
        if (int error = sysfs::write(unbind, pci); error != 0) return error_text(unbind, error);
    }
    if (driver.empty()) return {};
    const std::string binder = sysfs::driver_folder(driver) + "/bind";
    const int error = sysfs::write(binder, pci);
    if (driver_of(pci) == driver) return {};  // bound, perhaps by the driver itself meanwhile
    return error_text(binder, error == 0 ? ENODEV : error);
}

void check_role(const std::string& pci, VfioRole role, const std::string& driver) {
    const std::string kind = sysfs::read(sysfs::pci_folder(pci) + "/class");
    if (kind.empty()) throw Refused(pci + ": there is no such PCI device: lspci -D shows them");
    if (role == VfioRole::kNvme && kind != "0x010802") {
        throw Refused(pci + ": not an NVMe controller (its PCI class is " + kind + "): lspci -D | grep -i nvme");
    }
    if (driver.empty() || driver == kVfio || (role == VfioRole::kNvme && driver == "nvme")) return;
    throw Refused(pci + ": the driver '" + driver + "' uses this device; fastio does not unbind it: echo " + pci +
                  " > " + sysfs::driver_folder(driver) + "/unbind");
}

}  // namespace

VfioClaim::VfioClaim(const std::string& pci, VfioRole role) : pci_(pci) {
    if (std::string refusal = wait_until_started(pci, kStartMs); !refusal.empty()) throw Refused(pci + ": " + refusal);
    const std::string driver = driver_of(pci);
    check_role(pci, role, driver);
    static_cast<void>(group());  // throws before anything is changed
    if (!sysfs::exists(sysfs::driver_folder(kVfio))) {
        throw Refused(pci + ": the kernel module vfio-pci is not loaded: modprobe vfio-pci");
    }
    if (driver == kVfio) return;
    ExclusiveOpens held;  // until the kernel's driver is unbound
    if (std::string use = namespace_in_use(pci, held); !use.empty()) throw Refused(pci + ": " + use);
    take(driver);
}

VfioClaim::VfioClaim(VfioClaim&& other) noexcept
    : pci_(std::move(other.pci_)), taken_(std::exchange(other.taken_, false)), from_(std::move(other.from_)) {}

VfioClaim::~VfioClaim() {
    if (taken_) give_back();
}

unsigned VfioClaim::group() const {
    const std::string number = sysfs::link(sysfs::pci_folder(pci_) + "/iommu_group");
    if (number.empty()) {
        throw Refused(pci_ +
                      ": this device has no IOMMU: enable VT-d or AMD-Vi in the firmware, and on Intel add "
                      "intel_iommu=on to the kernel's command line");
    }
    return static_cast<unsigned>(std::stoul(number));
}

void VfioClaim::take(const std::string& driver) {
    from_ = driver;
    taken_ = true;
    const std::string refusal = bind_driver(pci_, kVfio, true);
    if (refusal.empty()) return keep_note();
    if (driver_of(pci_) != driver) give_back();
    taken_ = false;
    throw Refused(pci_ + ": cannot be bound to vfio-pci: " + refusal +
                  " (root can bind it permanently: driverctl set-override " + pci_ + " vfio-pci)");
}

void VfioClaim::take_over() {
    if (taken_ || access(note_path(pci_).c_str(), W_OK) != 0) return;
    from_ = sysfs::read(note_path(pci_));
    taken_ = true;
}

// Only root can write there. Without a note, a killed process leaves the device bound to vfio-pci, nothing worse.
void VfioClaim::keep_note() const {
    mkdir("/run", 0755);
    mkdir(kNoteFolder, 0755);
    std::ofstream(note_path(pci_)) << from_ << '\n';
}

void VfioClaim::give_back() noexcept {
    const std::string refusal = bind_driver(pci_, from_, false);
    unlink(note_path(pci_).c_str());
    if (refusal.empty()) return;
    std::fprintf(stderr, "fastio: %s could not be returned to the kernel's driver '%s': %s\n", pci_.c_str(),
                 from_.c_str(), refusal.c_str());
}

}  // namespace fastio
