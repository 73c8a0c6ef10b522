// Tests of failing programs and controllers, and of the state after that.
#pragma once

#include <string>

#include "devices.hpp"

namespace rig {

// Programs are killed during their work; the next one can use the disks at once.
void test_killed(const std::string& driver, const Places& places);
// Writes that take longer than the timeout fail with that error; the disk works afterwards.
void test_timeout(const std::string& driver, const Places& places);
// Disks are returned to the kernel and taken again, most times while it still starts their controllers.
void test_handover(const std::string& driver, const Places& places);
// A disk that is bound to vfio-pci is opened while something else resets it, and stays with vfio-pci afterwards.
void test_opened_in_reset(const std::string& driver, const Places& places);
// A disk in use is not taken from the kernel.
void test_in_use(const std::string& driver, const Places& places);
// Returns the file to which a write of "1" resets the controller under the driver.
std::string reset_file(const std::string& driver, const std::string& place);

}  // namespace rig
