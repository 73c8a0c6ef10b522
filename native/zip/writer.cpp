#include "zip/writer.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "checksum/crc32.hpp"
#include "zip/numbers.hpp"

namespace fastio {

namespace {

constexpr uint16_t kUtf8 = 0x0800, kDescribed = 0x0008;  // flags: UTF-8 names; a descriptor follows the data
constexpr uint64_t kCrcInDescriptor = 4, kCrcInEntry = 16;
constexpr uint16_t kMadeBy = 0x031E, kNeeded = 45;

// Builds a sequence of little-endian fields.
class Fields {
  public:
    Fields& u16(uint64_t value) { return add(value, 2); }
    Fields& u32(uint64_t value) { return add(value, 4); }
    Fields& u64(uint64_t value) { return add(value, 8); }
    Fields& zeros(size_t count) {
        bytes_.append(count, '\0');
        return *this;
    }
    Fields& text(const std::string& text) {
        bytes_ += text;
        return *this;
    }
    const std::string& bytes() const { return bytes_; }

  private:
    std::string bytes_;

    Fields& add(uint64_t value, int count) {
        for (int byte = 0; byte < count; ++byte) bytes_ += static_cast<char>(value >> (8 * byte));
        return *this;
    }
};

// Returns the zip64 extra field: the sizes and the offset, if they do not fit in 32 bits.
std::string zip64(uint64_t nbytes, uint64_t header) {
    Fields values;
    if (nbytes >= kMax32) values.u64(nbytes).u64(nbytes);
    if (header >= kMax32) values.u64(header);
    if (values.bytes().empty()) return {};
    return Fields().u16(1).u16(values.bytes().size()).text(values.bytes()).bytes();
}

uint16_t flags(uint64_t nbytes) { return nbytes > 0 ? kUtf8 | kDescribed : kUtf8; }

}  // namespace

void ZipBuilder::put(const void* data, uint64_t nbytes) {
    if (finished_) throw std::logic_error("the zip file is finished");
    if (runs_.empty() || runs_.back().offset + runs_.back().nbytes != offset_) {
        runs_.push_back({offset_, literal_.size(), 0});
    }
    const auto* bytes = static_cast<const uint8_t*>(data);
    literal_.insert(literal_.end(), bytes, bytes + nbytes);
    runs_.back().nbytes += nbytes;
    offset_ += nbytes;
}

void ZipBuilder::start(const std::string& name, uint64_t nbytes) {
    std::string full = folder_ + "/" + name;
    std::string extra = zip64(nbytes, offset_);
    uint64_t begin = offset_ + kHeaderBytes + full.size() + extra.size() + 4;
    uint64_t padding = (alignment_ - begin % alignment_) % alignment_;
    Fields header;
    header.u32(0x04034B50).u16(0).u16(flags(nbytes)).zeros(18).u16(full.size()).u16(extra.size() + 4 + padding);
    header.text(full).text(extra).text("FB").u16(padding).text(std::string(padding, 'Z'));
    records_.push_back({full, offset_, nbytes, 0, false});
    put(header.bytes().data(), header.bytes().size());
}

void ZipBuilder::end() {
    const Record& record = records_.back();
    if (record.nbytes == 0) return;
    if (record.is_extent) patches_.push_back({offset_ + kCrcInDescriptor, extents_ - 1});
    Fields descriptor;
    descriptor.u32(0x08074B50).u32(record.crc);
    if (record.header >= kMax32 || record.nbytes >= kMax32) {
        descriptor.u64(record.nbytes).u64(record.nbytes);
    } else {
        descriptor.u32(record.nbytes).u32(record.nbytes);
    }
    put(descriptor.bytes().data(), descriptor.bytes().size());
}

void ZipBuilder::add_bytes(const std::string& name, const void* data, uint64_t nbytes) {
    start(name, nbytes);
    if (nbytes > 0) {
        size_t at = literal_.size();
        put(data, nbytes);
        records_.back().crc = crc32(0, literal_.data() + at, nbytes);
    }
    end();
}

uint64_t ZipBuilder::add_extent(const std::string& name, uint64_t nbytes) {
    start(name, nbytes);
    uint64_t offset = offset_;
    records_.back().is_extent = true;
    ++extents_;
    offset_ += nbytes;
    end();
    return offset;
}

void ZipBuilder::finish() {
    uint64_t begin = offset_;
    size_t extent = 0;
    Fields directory;
    for (const Record& record : records_) {
        std::string extra = zip64(record.nbytes, record.header);
        uint64_t nbytes = std::min<uint64_t>(record.nbytes, kMax32);
        if (record.is_extent) patches_.push_back({begin + directory.bytes().size() + kCrcInEntry, extent++});
        directory.u32(0x02014B50)
            .u16(0)
            .u16(0)
            .u16(flags(record.nbytes))
            .zeros(6)
            .u32(record.crc)
            .u32(nbytes)
            .u32(nbytes);
        directory.u16(record.name.size()).u16(extra.size()).zeros(10);
        directory.u32(std::min<uint64_t>(record.header, kMax32)).text(record.name).text(extra);
    }
    uint64_t nbytes = directory.bytes().size(), count = records_.size();
    uint64_t end64 = begin + nbytes;
    directory.u32(0x06064B50).u64(44).u16(kMadeBy).u16(kNeeded).zeros(8);
    directory.u64(count).u64(count).u64(nbytes).u64(begin);
    directory.u32(0x07064B50).u32(0).u64(end64).u32(1);
    uint64_t short_count = std::min<uint64_t>(count, 0xFFFF);
    directory.u32(0x06054B50).u32(0).u16(short_count).u16(short_count);
    directory.u32(std::min<uint64_t>(nbytes, kMax32)).u32(std::min<uint64_t>(begin, kMax32)).u16(0);
    put(directory.bytes().data(), directory.bytes().size());
    finished_ = true;
}

}  // namespace fastio
