#include "vfio/in_use.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <vector>

#include "vfio/sysfs.hpp"

namespace fastio {

namespace {

// Returns the block device of a sysfs entry: of "nvme0n1", or of a multipath entry "nvme0c1n1", "nvme0n1".
std::string block_device(const std::string& name) {
    unsigned subsystem = 0, controller = 0, number = 0;
    int end = 0;
    if (std::sscanf(name.c_str(), "nvme%uc%un%u%n", &subsystem, &controller, &number, &end) == 3 ||
        std::sscanf(name.c_str(), "nvme%un%u%n", &subsystem, &number, &end) == 2) {
        if (name.size() == static_cast<size_t>(end)) {
            return "nvme" + std::to_string(subsystem) + "n" + std::to_string(number);
        }
    }
    return {};
}

// Returns a device's partitions and, last, the device: an exclusive open of the device covers its partitions.
std::vector<std::string> parts_of(const std::string& name, const std::string& root) {
    std::vector<std::string> parts;
    for (const std::string& entry : sysfs::names(root + "/sys/class/block/" + name)) {
        if (sysfs::exists(root + "/sys/class/block/" + name + "/" + entry + "/partition")) parts.push_back(entry);
    }
    parts.push_back(name);
    return parts;
}

// Returns where a device is mounted, as visible to this process. It compares the device name, too, because btrfs and
// others do not report the device number.
std::string mount_point(const std::string& part, const std::string& number, const std::string& root) {
    std::istringstream mounts(sysfs::read(root + "/proc/self/mountinfo"));
    for (std::string line; std::getline(mounts, line);) {
        std::istringstream fields(line);
        std::string id, parent, device, folder, point, word, kind, source;
        fields >> id >> parent >> device >> folder >> point;
        while (fields >> word && word != "-") {
        }
        fields >> kind >> source;
        if ((!number.empty() && device == number) || source == "/dev/" + part) return point;
    }
    return {};
}

bool is_swap(const std::string& part, const std::string& root) {
    std::istringstream swaps(sysfs::read(root + "/proc/swaps"));
    for (std::string line; std::getline(swaps, line);) {
        if (line.substr(0, line.find_first_of(" \t")) == "/dev/" + part) return true;
    }
    return false;
}

std::string use_of(const std::string& name, ExclusiveOpens& held, const std::string& root) {
    for (const std::string& part : parts_of(name, root)) {
        const std::string folder = root + "/sys/class/block/" + part;
        const std::string point = mount_point(part, sysfs::read(folder + "/dev"), root);
        if (!point.empty()) return part + " is mounted on " + point + ": umount " + point;
        if (is_swap(part, root)) return part + " is swap space in use: swapoff /dev/" + part;
        const std::vector<std::string> holders = sysfs::names(folder + "/holders");
        if (!holders.empty()) return holders.front() + " is built on " + part + ": stop it first";
        // EBUSY reveals other exclusive users (a filesystem in another mount namespace, ZFS, a block store).
        int fd = open((root + "/dev/" + part).c_str(), O_RDONLY | O_EXCL | O_CLOEXEC);
        if (fd < 0 && errno == EBUSY) {
            const std::string who = processes_with(root + "/dev/" + part);
            return "/dev/" + part + " is in use" + (who.empty() ? "" : " by " + who) + ": see lsof /dev/" + part;
        }
        if (fd < 0) continue;
        if (part == name) {
            held.add(fd);
        } else {
            close(fd);
        }
    }
    return {};
}

}  // namespace

ExclusiveOpens::~ExclusiveOpens() {
    for (int fd : fds_) close(fd);
}

std::string namespace_in_use(const std::string& pci, ExclusiveOpens& held, const std::string& root) {
    const std::string folder = root + sysfs::pci_folder(pci) + "/nvme";
    for (const std::string& controller : sysfs::names(folder)) {
        for (const std::string& entry : sysfs::names(folder + "/" + controller)) {
            const std::string name = block_device(entry);
            std::string use = name.empty() ? "" : use_of(name, held, root);
            if (!use.empty()) return use;
        }
    }
    return {};
}

std::string processes_with(const std::string& path) {
    std::string found;
    for (const std::string& process : sysfs::names("/proc")) {
        if (std::isdigit(static_cast<unsigned char>(process.front())) == 0) continue;
        const std::string folder = "/proc/" + process + "/fd/";
        for (const std::string& fd : sysfs::names(folder)) {
            char target[PATH_MAX];
            const ssize_t nbytes = readlink((folder + fd).c_str(), target, sizeof target);
            if (nbytes < 0 || path != std::string(target, static_cast<size_t>(nbytes))) continue;
            found += (found.empty() ? "process " : ", process ") + process + " (" +
                     sysfs::read("/proc/" + process + "/comm") + ")";
            break;
        }
    }
    return found;
}

}  // namespace fastio
