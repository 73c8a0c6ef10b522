// CRC-32s of memory, for bytes that were moved without them.
#pragma once

#include <cstdint>
#include <vector>

#include "transfer/extents.hpp"

namespace fastio {

// Returns the CRC-32 of the memory of each extent, computed by up to `threads` threads, the calling one included.
std::vector<uint32_t> memory_checksums(const std::vector<Extent>& extents, unsigned threads);

}  // namespace fastio
