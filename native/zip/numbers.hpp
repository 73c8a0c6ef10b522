// Numbers of the zip format that readers and the writer share.
#pragma once

#include <cstdint>

namespace fastio {

constexpr uint64_t kHeaderBytes = 30;    // of a local header, without its name and extra fields
constexpr uint32_t kMax32 = 0xFFFFFFFF;  // a field of 32 bits that says: look in the zip64 fields

}  // namespace fastio
