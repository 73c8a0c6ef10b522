// Lays out a zip file exactly as torch writes it, before any of it is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transfer/extents.hpp"

namespace fastio {

// A run of literal bytes: `nbytes` of the literal, from `start`, belong at `offset` of the file.
struct Run {
    uint64_t offset;
    uint64_t start;
    uint64_t nbytes;
};

// Records are stored and aligned by a padding field in each local header. The CRC is in a descriptor after the data and
// again in the central directory. There are always zip64 end records. This follows torch's writer
// (caffe2/serialize/inline_container.cc and its miniz), so that all of torch's readers work, even with calculated
// offsets.
class ZipBuilder {
  public:
    ZipBuilder(std::string folder, uint64_t alignment) : folder_(std::move(folder)), alignment_(alignment) {}

    // Reserves `nbytes` for the literal, which is moved each time it grows.
    void reserve(uint64_t nbytes) { literal_.reserve(nbytes); }
    // Adds a record whose bytes are copied into the literal now. For small records.
    void add_bytes(const std::string& name, const void* data, uint64_t nbytes);
    // Adds a record whose bytes are written later. Returns the file offset of its data.
    uint64_t add_extent(const std::string& name, uint64_t nbytes);
    // Appends the directory. Adding a record after it throws std::logic_error.
    void finish();

    uint64_t size() const { return offset_; }
    // All bytes of the file except the extents'. Once finished, its address is fixed; the bytes may be changed.
    std::vector<uint8_t>& literal() { return literal_; }
    bool finished() const { return finished_; }
    const std::vector<Run>& runs() const { return runs_; }
    // Where the CRCs of the extents belong, sorted by offset. Extents are numbered in the order they were added.
    const std::vector<Patch>& patches() const { return patches_; }

  private:
    struct Record {
        std::string name;
        uint64_t header;
        uint64_t nbytes;
        uint32_t crc;
        bool is_extent;
    };

    std::string folder_;
    uint64_t alignment_;
    uint64_t offset_ = 0;
    size_t extents_ = 0;
    bool finished_ = false;
    std::vector<Record> records_;
    std::vector<uint8_t> literal_;
    std::vector<Run> runs_;
    std::vector<Patch> patches_;

    void put(const void* data, uint64_t nbytes);
    void start(const std::string& name, uint64_t nbytes);
    void end();
};

}  // namespace fastio
