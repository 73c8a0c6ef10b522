// The machine's disks, named for all drivers by PCI address, "0000:00:03.0" or "0000:00:08.0/2" for namespace 2; and
// the peer device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block_store/driver.hpp"
#include "block_store/store.hpp"

namespace rig {

using Places = std::vector<std::string>;

// A driver and its descriptors, closed in the right order.
struct Opened {
    Opened() = default;
    Opened(Opened&&) = default;
    ~Opened();

    std::vector<int> fds;  // -1 if the driver opens the devices itself
    std::vector<uint64_t> blocks;
    std::unique_ptr<fastio::StoreDriver> driver;
};

// Returns the kernel's block device, such as "/dev/nvme0n1", or with `prefix` "ng" its passthrough device.
std::string kernel_device(const std::string& place, const std::string& prefix = "nvme");
// Returns the file of the kernel's NVMe driver to which a write of "1" resets the controller.
std::string kernel_reset(const std::string& place);

// `timeout_ms`: the command timeout of the driver vfio; plan.sh sets that of the kernel's driver.
Opened open_driver(const std::string& name, const Places& places, uint32_t timeout_ms = 30'000);
std::unique_ptr<fastio::BlockStore> open_store(const std::string& name, const Places& places);

bool knows_status(const std::string& driver);  // whether its errors have NVMe statuses

constexpr char kPeer[] = "0000:00:05.0";  // a device whose BAR 2 is memory, like a GPU's
constexpr unsigned kPeerBar = 2;
constexpr uint64_t kPeerSpare = 12 << 20;  // memory from here on is not used by test_peer()

}  // namespace rig
