// Disk to device and back with no host memory between.
#pragma once

#include <string>

#include "devices.hpp"

namespace rig {

// What the script has put into the BAR's first part goes to the disk and comes back into its second half. The script
// compares both with the disk's image once the machine is off; here the host's own buffers are looked at.
void test_peer(const std::string& driver, const Places& places);

}  // namespace rig
