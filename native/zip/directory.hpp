// The end records and the entries of a zip file's central directory, parsed as torch's reader (miniz) parses them.
//
// What miniz refuses is Malformed here. What it takes though it contradicts itself is Malformed too; docs/acceptance.md
// lists these cases.
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
Directory find_directory(int fd, uint64_t size);

// The records in the directory's order, without the offsets of their data. Throws as find_directory() does.
std::vector<ZipRecord> read_entries(int fd, uint64_t size, const Directory& directory);

// Exactly `nbytes` bytes of the file. Throws SystemError or Truncated.
std::vector<uint8_t> read_bytes(int fd, uint64_t offset, uint64_t nbytes);

// A little-endian number.
template <typename Number>
Number number_at(const uint8_t* memory) {
    Number value = 0;
    for (size_t byte = 0; byte < sizeof(Number); ++byte) value |= static_cast<Number>(memory[byte]) << (8 * byte);
    return value;
}

}  // namespace fastio
