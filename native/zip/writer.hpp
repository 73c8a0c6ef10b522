// A zip file as torch writes it, byte for byte, laid out before any of it is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transfer/extents.hpp"

namespace fastio {

// A run of the file's own bytes: `nbytes` of the literal, from `start`, belong at `offset` of the file.
struct Run {
    uint64_t offset;
    uint64_t start;
    uint64_t nbytes;
};

// Stored records, aligned by a padding field in each local header; the CRC in a descriptor after the data and again in
// the central directory; zip64 end records always. After torch's writer (caffe2/serialize/inline_container.cc and
// its miniz), so that every reader of torch's, by calculated offsets too, finds what it expects.
class ZipBuilder {
  public:
    ZipBuilder(std::string folder, uint64_t alignment) : folder_(std::move(folder)), alignment_(alignment) {}

    // Room for so many bytes of literal, or it is moved each time it grows.
    void reserve(uint64_t nbytes) { literal_.reserve(nbytes); }
    // A record whose bytes go into the literal: small ones, read now.
    void add_bytes(const std::string& name, const void* data, uint64_t nbytes);
    // A record whose bytes are moved later. Gives the file offset of its data.
    uint64_t add_extent(const std::string& name, uint64_t nbytes);
    // Appends the directory. Nothing may be added after it: std::logic_error.
    void finish();

    uint64_t size() const { return offset_; }
    // All that is not extents' bytes. It stays where it is once finished, and may be changed there.
    std::vector<uint8_t>& literal() { return literal_; }
    bool finished() const { return finished_; }
    const std::vector<Run>& runs() const { return runs_; }
    // Where the CRCs of the extents belong, by the order in which they were added; sorted by offset.
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
