// A block store on emulated disks, by whichever driver.
#pragma once

#include <string>

#include "devices.hpp"

namespace rig {

// Many more blobs at once than any queue holds.
void test_queue_full(const std::string& driver, const Places& places);
// No command is larger than the smallest disk's largest transfer, and together they are the blob.
void test_splitting(const std::string& driver, const Places& places);
// Every block can be used, the next one is refused, and a refusal leaves the rest as it was.
void test_capacity(const std::string& driver, const Places& places);
// Several threads on one store.
void test_threads(const std::string& driver, const Places& places);
// The LBA trace of an iteration (FlashNeuron, figure 11): up in the forward pass, down in the backward pass; and the
// bytes that count for endurance.
void test_order(const std::string& driver, const Places& places);
// A blob with a bad block in it fails and says where; its neighbours do not.
void test_bad_blocks(const std::string& driver, const Places& places);

}  // namespace rig
