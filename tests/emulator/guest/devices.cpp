#include "devices.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "block_store/vfio.hpp"
#include "tests/support/check.hpp"

namespace rig {

namespace {

constexpr char kPci[] = "/sys/bus/pci/devices/";
constexpr int kTries = 6000;  // every 10 ms, for what the kernel does in the background

std::string address_of(const std::string& place) { return place.substr(0, place.find('/')); }

// Opens a device, and retries while it is busy: the kernel releases what the ring of a killed program held a little
// after the program has ended.
int open_free(const std::string& path, int flags) {
    for (int pause = 0;; ++pause) {
        const int fd = open(path.c_str(), flags);
        if (fd >= 0 || errno != EBUSY || pause == kTries) return fd;
        usleep(10000);
    }
}

std::string namespace_of(const std::string& place) {
    const size_t slash = place.find('/');
    return slash == std::string::npos ? "1" : place.substr(slash + 1);
}

// Returns the kernel's controller name, such as "nvme0"; "" if there is none. Names depend on the order in which
// controllers come up, so the tests use PCI addresses.
std::string controller_of(const std::string& place) {
    const std::string folder = kPci + address_of(place) + "/nvme";
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) return entry.path().filename();
    return {};
}

}  // namespace

Opened::~Opened() {
    driver.reset();
    for (int fd : fds)
        if (fd >= 0) close(fd);
}

std::string kernel_device(const std::string& place, const std::string& prefix) {
    for (int tries = 0; tries < kTries; ++tries) {
        const std::string controller = controller_of(place);
        if (!controller.empty()) {
            const std::string path = "/dev/" + prefix + controller.substr(4) + "n" + namespace_of(place);
            const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);  // its node exists before it can be opened
            if (fd >= 0) {
                close(fd);
                return path;
            }
        }
        usleep(10000);
    }
    CHECK(false, "the kernel has a disk at %s", place.c_str());
    return {};
}

std::string kernel_reset(const std::string& place) {
    kernel_device(place);
    return kPci + address_of(place) + "/nvme/" + controller_of(place) + "/reset_controller";
}

bool knows_status(const std::string& driver) { return driver == "nvme" || driver == "vfio"; }

Opened open_driver(const std::string& name, const Places& places, uint32_t timeout_ms) {
    Opened opened;
    if (name == "vfio") {
        opened.driver = fastio::make_vfio_driver(places, timeout_ms);
        opened.fds.assign(places.size(), -1);
    } else {
        for (const std::string& place : places) {
            const std::string path = kernel_device(place, name == "nvme" ? "ng" : "nvme");
            const int fd = open_free(path, name == "nvme" ? O_RDWR : O_RDWR | O_DIRECT | O_EXCL);
            CHECK(fd >= 0, "open %s: %s", path.c_str(), std::strerror(errno));
            opened.fds.push_back(fd);
            uint64_t nbytes = 0;
            if (name != "nvme") CHECK(ioctl(fd, BLKGETSIZE64, &nbytes) == 0, "size of %s", path.c_str());
            opened.blocks.push_back(nbytes / fastio::kStoreBlock);
        }
        opened.driver = fastio::make_store_driver(name, opened.fds);
    }
    const std::vector<fastio::StoreDriver::Device> known = opened.driver->devices();
    if (!knows_status(name)) return opened;
    CHECK(known.size() == places.size(), "%zu devices of %zu are reported", known.size(), places.size());
    opened.blocks.clear();
    for (const fastio::StoreDriver::Device& device : known) opened.blocks.push_back(device.blocks);
    return opened;
}

std::unique_ptr<fastio::BlockStore> open_store(const std::string& name, const Places& places) {
    Opened opened = open_driver(name, places);
    std::vector<fastio::StoreDevices::Device> list;
    for (size_t number = 0; number < places.size(); ++number)
        list.push_back({opened.fds[number], opened.blocks[number]});
    opened.fds.clear();  // the store owns them now
    auto devices = std::make_unique<fastio::StoreDevices>(std::move(list), 0);
    return std::make_unique<fastio::BlockStore>(std::move(devices), std::move(opened.driver), 512);
}

}  // namespace rig
