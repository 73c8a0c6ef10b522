// Reads the directory of a zip file and checks every number in it against the file before it is used.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fastio {

// Where a zip file is read from: an open file, or the function that returns bytes [offset, offset + nbytes).
struct ZipSource {
    int fd = -1;
    std::function<std::vector<uint8_t>(uint64_t offset, uint64_t nbytes)> read;

    ZipSource(int fd) : fd(fd) {}  // NOLINT(google-explicit-constructor)
    explicit ZipSource(std::function<std::vector<uint8_t>(uint64_t, uint64_t)> read) : read(std::move(read)) {}
};

struct ZipRecord {
    std::string name;
    uint64_t header;  // offset of the local header
    uint64_t offset;  // offset of the first byte of data
    uint64_t nbytes;
    uint32_t crc;
    uint16_t method;  // 0 is stored; anything else is compressed
    uint16_t flags;
    uint64_t size;  // of the inflated data; equal to nbytes if stored
};

// The file contradicts itself. `record` names the record at fault; it is empty if that is the directory.
struct Malformed : std::runtime_error {
    std::string record;
    Malformed(std::string record, const std::string& problem)
        : std::runtime_error(problem), record(std::move(record)) {}
};

// Returns the records in file order. Throws SystemError, Truncated or Malformed.
//
// A record's data starts after its local header. Reading every local header would cost a scattered read per record, so
// the data offset is derived from the next record (torch writes data, a descriptor, the next header). A derived offset
// is a guess: check_headers() must confirm it before the bytes are used. With `read_local_headers` the headers are read
// instead. `is_standard` is set to whether the file ends as torch writes it: with an unambiguous end record.
std::vector<ZipRecord> read_directory(const ZipSource& source, uint64_t size, bool read_local_headers,
                                      bool* is_standard = nullptr);

// Whether the local headers confirm the data offsets of all records that lie, header included, in `memory`, which holds
// `nbytes` of the file from `offset` on.
bool check_headers(const std::vector<ZipRecord>& records, const uint8_t* memory, uint64_t offset, uint64_t nbytes);

}  // namespace fastio
