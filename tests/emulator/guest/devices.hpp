// The machine's disks by PCI address, "0000:00:03.0" or "0000:00:08.0/2" for namespace 2, whichever driver is to open
// them; and the memory of the device beside them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block_store/driver.hpp"
#include "block_store/store.hpp"

namespace rig {

using Places = std::vector<std::string>;

// A driver with what it stands on: closed in the right order.
struct Opened {
    Opened() = default;
    Opened(Opened&&) = default;
    ~Opened();

    std::vector<int> fds;  // -1 where the driver opens the devices by itself
    std::vector<uint64_t> blocks;
    std::unique_ptr<fastio::StoreDriver> driver;
};

// Of the kernel's NVMe driver: "/dev/nvme0n1", or with `prefix` "ng" the character device beside it.
std::string kernel_device(const std::string& place, const std::string& prefix = "nvme");
// Of a place that the kernel's NVMe driver has: where its controller is reset by a write of "1".
std::string kernel_reset(const std::string& place);

// `timeout_ms`: after which the driver vfio takes a command for lost; the kernel's drivers have theirs from plan.sh.
Opened open_driver(const std::string& name, const Places& places, uint32_t timeout_ms = 30'000);
std::unique_ptr<fastio::BlockStore> open_store(const std::string& name, const Places& places);

bool knows_status(const std::string& driver);  // whether errors have NVMe's own code

constexpr char kPeer[] = "0000:00:05.0";  // a device whose BAR 2 is memory, as a GPU's is
constexpr unsigned kPeerBar = 2;
constexpr uint64_t kPeerSpare = 12 << 20;  // what lies behind is not what the script looks at: see peer.hpp

}  // namespace rig
