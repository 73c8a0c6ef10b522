// Tests a block store on emulated disks, with any driver.
#pragma once

#include <string>

#include "devices.hpp"

namespace rig {

// Many more blobs at once than a queue holds.
void test_queue_full(const std::string& driver, const Places& places);
// No command exceeds the smallest disk's largest transfer, and together they cover the blob.
void test_splitting(const std::string& driver, const Places& places);
// Every block can be used, a further one is refused, and the refusal changes nothing else.
void test_capacity(const std::string& driver, const Places& places);
// Several threads on one store.
void test_threads(const std::string& driver, const Places& places);
// The LBA trace of an iteration (FlashNeuron, figure 11) ascends in the forward pass and descends in the backward pass;
// and the bytes written, which matter for endurance.
void test_order(const std::string& driver, const Places& places);
// A blob with a bad block fails and reports the place; its neighbours do not fail.
void test_bad_blocks(const std::string& driver, const Places& places);

}  // namespace rig
