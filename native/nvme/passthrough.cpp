#include "nvme/passthrough.hpp"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "block_store/devices.hpp"
#include "nvme/status.hpp"
#include "nvme/wire.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

constexpr uint64_t kMaxTransfer = 1 << 20;
constexpr uint64_t kSegments = 127;  // of one command, if /sys is not readable: the kernel's maximum

constexpr unsigned long kNamespaceId = _IO('N', 0x40);
constexpr unsigned long kAdmin = _IOWR('N', 0x41, PassthroughCommand);

void identify(const std::string& name, int fd, uint32_t nsid, uint32_t what, uint8_t* page) {
    PassthroughCommand command{};
    command.opcode = nvme::kIdentify;
    command.nsid = nsid;
    command.memory = reinterpret_cast<uintptr_t>(page);
    command.nbytes = nvme::kPage;
    command.cdw10 = what;
    const int answer = ioctl(fd, kAdmin, &command);
    if (answer == 0) return;
    if (answer > 0) throw Refused(name + ": Identify: " + nvme_status_words(static_cast<uint16_t>(answer)));
    const bool forbidden = errno == EACCES || errno == EPERM;
    throw Refused(name + ": Identify: " + std::strerror(errno) +
                  (forbidden ? "; before Linux 6.2 that needs root (CAP_SYS_ADMIN)" : ""));
}

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// Returns the kernel's name of a descriptor's device, such as "ng0n1"; "" if /sys is not readable.
std::string kernel_name(int fd) {
    struct stat state{};
    if (fstat(fd, &state) != 0 || !S_ISCHR(state.st_mode)) return {};
    std::ifstream file("/sys/dev/char/" + std::to_string(major(state.st_rdev)) + ":" +
                       std::to_string(minor(state.st_rdev)) + "/uevent");
    const std::string key = "DEVNAME=";
    for (std::string line; std::getline(file, line);) {
        if (line.compare(0, key.size(), key) == 0) return line.substr(key.size());
    }
    return {};
}

// Returns a queue limit of the block device that belongs to the passthrough device; `otherwise` if it is not readable.
uint64_t limit(const std::string& kernel_name, const char* which, uint64_t otherwise) {
    if (kernel_name.compare(0, 2, "ng") != 0) return otherwise;
    const std::string line = first_line("/sys/class/block/nvme" + kernel_name.substr(2) + "/queue/" + which);
    return line.empty() ? otherwise : std::strtoull(line.c_str(), nullptr, 10);
}

uint64_t power_of_two_below(uint64_t value) {
    uint64_t power = 1;
    while (power <= value / 2) power *= 2;
    return power;
}

}  // namespace

PassthroughNamespace identify_passthrough(int fd) {
    const std::string device = kernel_name(fd);
    const std::string name = device.empty() ? "descriptor " + std::to_string(fd) : "/dev/" + device;
    const int nsid = ioctl(fd, kNamespaceId);
    if (nsid <= 0)
        throw Refused(name + " is not an NVMe namespace (" + std::strerror(errno) +
                      "): expected one such as /dev/ng0n1");

    alignas(nvme::kPage) uint8_t page[nvme::kPage] = {};
    identify(name, fd, 0, nvme::kController, page);
    const nvme::ControllerData controller = nvme::parse_controller(page);
    identify(name, fd, static_cast<uint32_t>(nsid), nvme::kNamespace, page);
    const nvme::NamespaceData data = nvme::parse_namespace(page);
    if (const std::string reason = nvme::unusable_reason(data, kStoreBlock); !reason.empty())
        throw Refused(name + reason);

    // One command has three limits: the controller's, the kernel's in bytes, and the kernel's in segments. Each page
    // may need a segment, and memory that begins inside a page one more.
    uint64_t most = controller.largest_transfer(0, kMaxTransfer);
    most = std::min(most, limit(device, "max_hw_sectors_kb", kMaxTransfer >> 10) << 10);
    const uint64_t segments = std::max<uint64_t>(limit(device, "max_segments", kSegments), 2);
    most = std::min(most, (segments - 1) * nvme::kPage);
    most = std::min(most, uint64_t{nvme::kMaxLbas} * data.lba_bytes);
    return {fd,
            static_cast<uint32_t>(nsid),
            data.lbas * data.lba_bytes,
            data.lba_bytes,
            std::max(power_of_two_below(most), kStoreBlock),
            limit(device, "dma_alignment", 511) + 1,
            name,
            controller.model,
            controller.serial};
}

}  // namespace fastio
