// The directory of a zip file, read with distrust: every number in it is checked against the file before it is used.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace fastio {

struct ZipRecord {
    std::string name;
    uint64_t header;  // offset of the local header
    uint64_t offset;  // offset of the first byte of data
    uint64_t nbytes;
    uint32_t crc;
    uint16_t method;  // 0 is stored; anything else is compressed
    uint16_t flags;
    uint64_t size;  // of the data once it is inflated; nbytes where it is stored
};

// The file contradicts itself. `record` is empty where it is the directory that does.
struct Malformed : std::runtime_error {
    std::string record;
    Malformed(std::string record, const std::string& problem)
        : std::runtime_error(problem), record(std::move(record)) {}
};

// The records in the order of their place in the file. Throws SystemError, Truncated or Malformed.
//
// A record's data starts after its local header. Reading every local header is a scattered read per record, so the
// place is derived from the record that follows (as torch writes them: data, a descriptor, the next header). A derived
// offset is a guess: check_headers() must confirm it before the bytes are used. `read_local_headers` reads the headers
// instead. `usual` becomes whether the file ends as torch writes it: with the end record, and one that needs no
// interpretation.
std::vector<ZipRecord> read_directory(int fd, uint64_t size, bool read_local_headers, bool* is_standard = nullptr);

// Whether every record that lies in `memory` with its local header (file bytes from `offset`, `nbytes` of them) starts
// where its offset says.
bool check_headers(const std::vector<ZipRecord>& records, const uint8_t* memory, uint64_t offset, uint64_t nbytes);

}  // namespace fastio
