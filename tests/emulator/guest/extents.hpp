// Tests a driver against a model of its disks.
#pragma once

#include <cstdint>
#include <string>

#include "devices.hpp"

namespace rig {

struct ExtentsOptions {
    uint64_t operations = 10000;
    std::string reset;          // a file: a write of "1", now and then, resets a controller
    uint8_t* memory = nullptr;  // peer memory, to use instead of host memory
    uint64_t memory_nbytes = 0;
    uint64_t most_blocks = 4096;  // blocks of each disk to use
};

// Writes and reads random extents, as many at once as the driver takes. Compares each block that is read with the
// model, and all blocks at the end. Saves the model in kModelFile for test_audit().
void test_extents(const std::string& driver, const Places& places, const ExtentsOptions& options);
// Compares the blocks, read through the kernel's block device, with the model that test_extents() saved.
void test_audit(const Places& places);

}  // namespace rig
