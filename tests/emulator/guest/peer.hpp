// Tests transfers between a disk and peer memory without host memory.
#pragma once

#include <string>

#include "devices.hpp"

namespace rig {

// Writes the first part of the BAR, which the script has filled, to the disk, and reads it back into the second half.
// The script compares both with the disk's image once the machine is off. The test checks that host buffers do not
// change.
void test_peer(const std::string& driver, const Places& places);

}  // namespace rig
