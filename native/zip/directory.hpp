// Parses the end records and entries of a zip file's central directory as torch's reader (miniz) does.
//
// It throws Malformed for what miniz refuses, and for contradictions that miniz accepts; docs/acceptance.md lists
// those.
#pragma once

#include <cstdint>
#include <vector>

#include "zip/entries.hpp"

namespace fastio {

struct Directory {
    uint64_t offset, nbytes, count;
    uint64_t disk;
    bool is_standard;  // the end record is the last thing in the file, and no zip64 record is missing
};

// Throws SystemError, Truncated or Malformed.
Directory find_directory(const ZipSource& source, uint64_t size);

// Returns the records in the directory's order, without the offsets of their data. Throws as find_directory() does.
std::vector<ZipRecord> read_entries(const ZipSource& source, uint64_t size, const Directory& directory);

// Reads exactly `nbytes` bytes of the file. Throws SystemError or Truncated.
std::vector<uint8_t> read_bytes(const ZipSource& source, uint64_t offset, uint64_t nbytes);

// Reads a little-endian number.
template <typename Number>
Number number_at(const uint8_t* memory) {
    Number value = 0;
    for (size_t byte = 0; byte < sizeof(Number); ++byte) value |= static_cast<Number>(memory[byte]) << (8 * byte);
    return value;
}

}  // namespace fastio
