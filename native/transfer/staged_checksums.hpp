// The checksums of a staged transfer, whose windows are measured in any order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "transfer/extents.hpp"

namespace fastio {

// Adds up the parts of windows in file order. Thread-safe.
class WindowChecksums {
  public:
    WindowChecksums(size_t extents, size_t windows) : checksums_(extents), parts_(windows) {}

    // Takes the parts of a window. Workers take windows in order, so every earlier one is measured soon.
    void put(size_t window, std::vector<Part> parts);
    // Writes the patches in [begin, end), which a window holds, into its bytes at `memory`; waits until all earlier
    // windows are measured if there are any. Returns false, without patching, after stop().
    bool patch(const std::vector<Patch>& patches, size_t window, uint64_t begin, uint64_t end, uint8_t* memory);
    // Ends all waiting: some window will never be measured.
    void stop();
    // The CRC-32 of each extent, when all windows are measured.
    const std::vector<uint32_t>& values() const { return checksums_.values(); }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    Checksums checksums_;
    std::vector<std::optional<std::vector<Part>>> parts_;  // of windows that were measured and not added yet
    size_t added_ = 0;                                     // windows whose parts were added
    bool stopped_ = false;
};

}  // namespace fastio
