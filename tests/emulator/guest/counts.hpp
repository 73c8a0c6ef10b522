// Counts the cost of moving a MiB, in the drivers here and in the emulated controller and IOMMU outside.
#pragma once

#include <string>

#include "devices.hpp"

namespace rig {

// `driver`: a store driver; or "pread" or "pread-cached": the kernel's block device without or with the page cache.
void test_counts(const std::string& driver, const Places& places);
// The same with peer memory, behind a BAR, as the buffer.
void test_counts_in_bar(const std::string& driver, const Places& places);

}  // namespace rig
