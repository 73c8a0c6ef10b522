// Waits until the kernel's nvme driver has started a controller.
#pragma once

#include <cstdint>
#include <string>

namespace fastio {

// The driver starts a controller in the background after it was bound to it. Linux 6.1 counts a controller that is
// unbound before that as failed, and unbinds it once more, a little later, from the driver that it has by then. So a
// controller is taken only when it is started, or known to be dead.
// Returns why that did not happen within `limit_ms`, with the cure; "" if it did, or if the device has another driver
// or none. `root` is "" except in tests.
std::string wait_until_started(const std::string& pci, uint64_t limit_ms, const std::string& root = "");

}  // namespace fastio
