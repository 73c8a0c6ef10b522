// What goes wrong with a whole program or controller, and how things stand after it.
#pragma once

#include <string>

#include "devices.hpp"

namespace rig {

// Programs that are killed in the middle of their work; the next one finds the disks as if nothing had been.
void test_killed(const std::string& driver, const Places& places);
// Writes that the disk keeps for longer than anybody waits: they fail and say so, and the disk works again.
void test_timeout(const std::string& driver, const Places& places);
// A disk that somebody uses is not taken from the kernel.
void test_in_use(const std::string& driver, const Places& places);
// Where "1" is written to have the controller reset under the driver.
std::string reset_file(const std::string& driver, const std::string& place);

}  // namespace rig
