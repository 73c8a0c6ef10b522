// Moves bytes between a file and memory of accelerators, window by window, through pinned staging memory.
//
// Several workers do it, each on a thread and with streams and staging memory of its own. They share the number of the
// next window, the checksums and the first error, and nothing else. The host copies each byte once, from or to the page
// cache, and computes its checksum in that pass, while it is in the processor's cache.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device_copies.hpp"
#include "transfer/control.hpp"
#include "transfer/direct.hpp"
#include "transfer/extents.hpp"
#include "transfer/staged_file.hpp"

namespace fastio {

// The place of an extent: the index of its device, or this.
constexpr int kHost = -1;

struct StagedMemory {
    std::vector<uint8_t*> buffers;  // of a worker each, aligned to pages, of two windows; at least one
    uint64_t window;                // the most bytes of the file in one window, in whole pages
};

// Where the memory of each extent is, by its index, and the copies of the devices; null where all of it is the host's.
struct StagedPlaces {
    std::vector<int> devices;
    const DeviceCopies* copies;
};

// Both return the CRC-32 of each extent that asks for one, of the bytes as they were staged. Nothing is in flight when
// they return or throw. After an error nothing more is started, and the error of the lowest window is thrown:
// SystemError, Truncated, or Refused if a copy failed or the transfer was cancelled.
//
// All work of the devices on the memory must have ended before.

// Fills the memory of `extents`. Where there is a span, gaps between extents may be filled, too.
std::vector<uint32_t> staged_read(StagedFile& file, const Extents& extents, const Span& span,
                                  const StagedPlaces& places, const StagedMemory& memory, Control& control);

// Writes the file image of `extents` and `patches`, of a file of `size` bytes that holds zeros.
std::vector<uint32_t> staged_write(StagedFile& file, uint64_t size, const Extents& extents,
                                   const std::vector<Patch>& patches, const StagedPlaces& places,
                                   const StagedMemory& memory, Control& control);

}  // namespace fastio
