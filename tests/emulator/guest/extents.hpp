// A driver against a model of its disks.
#pragma once

#include <cstdint>
#include <string>

#include "devices.hpp"

namespace rig {

struct ExtentsOptions {
    uint64_t operations = 10000;
    std::string reset;          // a file: "1" is written to it now and then, which resets a controller
    uint8_t* memory = nullptr;  // of a device, instead of the host's
    uint64_t memory_nbytes = 0;
    uint64_t most_blocks = 4096;  // of each disk that take part
};

// Random extents, written and read in any order and as many at once as the driver takes. Every block that comes is
// compared with the model; so are all blocks at the end. Leaves the model in kModelFile for audit().
void test_extents(const std::string& driver, const Places& places, const ExtentsOptions& options);
// The disks' blocks as the kernel's block device reads them, against the model that another driver has left.
void test_audit(const Places& places);

}  // namespace rig
