// What it costs to move a MiB, counted by the drivers here and by the emulated controller and IOMMU outside.
#pragma once

#include <string>

#include "devices.hpp"

namespace rig {

// `driver`: a store's; or "pread" or "pread-cached": the kernel's block device around and through its page cache.
void test_counts(const std::string& driver, const Places& places);
// With the memory behind a BAR for a buffer.
void test_counts_in_bar(const std::string& driver, const Places& places);

}  // namespace rig
