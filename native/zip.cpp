#include "zip.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_set>

#include "errors.hpp"

// Offsets and signatures: PKWARE's APPNOTE 6.3, sections 4.3.7 (local header), 4.3.9 (descriptor), 4.3.12 (central
// directory), 4.3.14-16 (ends of it). Numbers are little endian.

namespace fastio {

namespace {

constexpr uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kEntryBytes = 46, kHeaderBytes = 30;
constexpr uint64_t kLongestComment = 65535;
constexpr uint32_t kMax32 = 0xFFFFFFFF;
constexpr uint16_t kHasDescriptor = 1 << 3;

template <typename Number>
Number number_at(const uint8_t* memory) {
    Number value = 0;
    for (size_t byte = 0; byte < sizeof(Number); ++byte) value |= static_cast<Number>(memory[byte]) << (8 * byte);
    return value;
}

std::vector<uint8_t> read_bytes(int fd, uint64_t offset, uint64_t nbytes) {
    std::vector<uint8_t> bytes(nbytes);
    uint64_t got = 0;
    while (got < nbytes) {
        ssize_t count = pread(fd, bytes.data() + got, nbytes - got, static_cast<off_t>(offset + got));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) throw SystemError(errno, "read", offset + got);
        if (count == 0) throw Truncated(offset + got);
        got += static_cast<uint64_t>(count);
    }
    return bytes;
}

struct Directory {
    uint64_t offset, nbytes, count;
};

Directory find_directory(int fd, uint64_t size) {
    if (size < kEndBytes) throw Malformed("", "too short for a zip file: " + std::to_string(size) + " bytes");
    // Without a comment, as torch writes it, the end record is the last thing in the file.
    uint64_t tail = std::min(size, kEndBytes + kLocatorBytes + kEnd64Bytes);
    std::vector<uint8_t> bytes = read_bytes(fd, size - tail, tail);
    uint64_t at = tail - kEndBytes;
    if (std::memcmp(&bytes[at], "PK\5\6", 4) != 0 || number_at<uint16_t>(&bytes[at + 20]) != 0) {
        tail = std::min(size, kEndBytes + kLongestComment + kLocatorBytes + kEnd64Bytes);
        bytes = read_bytes(fd, size - tail, tail);
        at = tail - kEndBytes;
        while (std::memcmp(&bytes[at], "PK\5\6", 4) != 0 ||
               number_at<uint16_t>(&bytes[at + 20]) != tail - at - kEndBytes) {
            if (at == 0) throw Malformed("", "no end of a zip directory; the file is cut short or is no zip file");
            --at;
        }
    }
    const uint8_t* end = &bytes[at];
    Directory found{number_at<uint32_t>(end + 16), number_at<uint32_t>(end + 12), number_at<uint16_t>(end + 10)};
    uint64_t end_offset = size - tail + at;
    if (end_offset >= kLocatorBytes + kEnd64Bytes && at >= kLocatorBytes &&
        std::memcmp(end - kLocatorBytes, "PK\6\7", 4) == 0) {
        uint64_t end64 = number_at<uint64_t>(end - kLocatorBytes + 8);
        if (end64 > end_offset - kLocatorBytes || end_offset - kLocatorBytes - end64 < kEnd64Bytes) {
            throw Malformed("", "the zip64 end record is said to be outside the file");
        }
        std::vector<uint8_t> record = read_bytes(fd, end64, kEnd64Bytes);
        if (std::memcmp(record.data(), "PK\6\6", 4) != 0) throw Malformed("", "no zip64 end record where it should be");
        found = {number_at<uint64_t>(&record[48]), number_at<uint64_t>(&record[40]), number_at<uint64_t>(&record[32])};
        end_offset = end64;
    }
    if (found.offset > end_offset || found.nbytes > end_offset - found.offset ||
        found.count > found.nbytes / kEntryBytes) {
        throw Malformed("", "the zip directory is said to be larger than the file has room for");
    }
    return found;
}

// The 64-bit values of a central directory entry whose 32-bit ones are all ones.
void widen(const uint8_t* extra, uint64_t nbytes, ZipRecord& record, uint64_t& compressed) {
    bool wide_size = record.nbytes == kMax32, wide_compressed = compressed == kMax32,
         wide_header = record.header == kMax32;
    if (!wide_size && !wide_compressed && !wide_header) return;
    uint64_t at = 0;
    while (at + 4 <= nbytes) {
        uint64_t id = number_at<uint16_t>(extra + at), length = number_at<uint16_t>(extra + at + 2);
        at += 4;
        if (length > nbytes - at) break;
        if (id == 1) {
            uint64_t wanted = 8 * (static_cast<uint64_t>(wide_size) + wide_compressed + wide_header);
            if (length < wanted) break;
            const uint8_t* value = extra + at;
            if (wide_size) record.nbytes = number_at<uint64_t>(value), value += 8;
            if (wide_compressed) compressed = number_at<uint64_t>(value), value += 8;
            if (wide_header) record.header = number_at<uint64_t>(value);
            return;
        }
        at += length;
    }
    throw Malformed(record.name, "its 64-bit size or offset is missing from the zip directory");
}

// Where the data of a record starts by its own local header.
uint64_t data_offset(const ZipRecord& record, const uint8_t* header) {
    if (std::memcmp(header, "PK\3\4", 4) != 0) throw Malformed(record.name, "no local header where the directory says");
    if (number_at<uint16_t>(header + 26) != record.name.size()) {
        throw Malformed(record.name, "the name in its local header has another length than in the directory");
    }
    return record.header + kHeaderBytes + record.name.size() + number_at<uint16_t>(header + 28);
}

void place(std::vector<ZipRecord>& records, int fd, uint64_t directory, bool careful) {
    for (size_t index = 0; index < records.size(); ++index) {
        ZipRecord& record = records[index];
        uint64_t limit = index + 1 < records.size() ? records[index + 1].header : directory;
        uint64_t earliest = record.header + kHeaderBytes + record.name.size();
        if (earliest > limit || record.nbytes > limit - earliest) {
            throw Malformed(record.name, "is said to have " + std::to_string(record.nbytes) +
                                             " bytes, more than the file has room for before the next record");
        }
        uint64_t descriptor = 0;
        if ((record.flags & kHasDescriptor) != 0 && record.nbytes > 0) {
            descriptor = record.header >= kMax32 || record.nbytes >= kMax32 ? 24 : 16;
        }
        record.offset = limit - descriptor - record.nbytes;
        if (careful || limit < earliest + record.nbytes + descriptor || record.offset - earliest > 65535) {
            record.offset = data_offset(record, read_bytes(fd, record.header, kHeaderBytes).data());
            if (record.offset > limit || record.nbytes > limit - record.offset) {
                throw Malformed(record.name, "runs into the next record");
            }
        }
    }
}

}  // namespace

std::vector<ZipRecord> read_directory(int fd, uint64_t size, bool careful) {
    Directory directory = find_directory(fd, size);
    std::vector<uint8_t> bytes = read_bytes(fd, directory.offset, directory.nbytes);
    std::vector<ZipRecord> records;
    records.reserve(directory.count);
    std::unordered_set<std::string> names;
    uint64_t at = 0;
    for (uint64_t index = 0; index < directory.count; ++index) {
        if (directory.nbytes - at < kEntryBytes) throw Malformed("", "the zip directory is cut short");
        const uint8_t* entry = &bytes[at];
        if (std::memcmp(entry, "PK\1\2", 4) != 0) throw Malformed("", "the zip directory holds something else");
        uint64_t name = number_at<uint16_t>(entry + 28), extra = number_at<uint16_t>(entry + 30);
        uint64_t length = kEntryBytes + name + extra + number_at<uint16_t>(entry + 32);
        if (length > directory.nbytes - at) throw Malformed("", "the zip directory is cut short");
        ZipRecord record{std::string(reinterpret_cast<const char*>(entry) + kEntryBytes, name),
                         number_at<uint32_t>(entry + 42),
                         0,
                         number_at<uint32_t>(entry + 24),
                         number_at<uint32_t>(entry + 16),
                         number_at<uint16_t>(entry + 10),
                         number_at<uint16_t>(entry + 8)};
        uint64_t compressed = number_at<uint32_t>(entry + 20);
        widen(entry + kEntryBytes + name, extra, record, compressed);
        if (!names.insert(record.name).second) throw Malformed(record.name, "is in the zip directory twice");
        if (record.method == 0 && compressed != record.nbytes) {
            throw Malformed(record.name, "is stored, but its two sizes differ");
        }
        if (record.method != 0) record.nbytes = compressed;
        if (record.header > directory.offset) throw Malformed(record.name, "is said to start outside the file");
        records.push_back(std::move(record));
        at += length;
    }
    std::stable_sort(records.begin(), records.end(),
                     [](const ZipRecord& one, const ZipRecord& other) { return one.header < other.header; });
    place(records, fd, directory.offset, careful);
    return records;
}

bool check_headers(const std::vector<ZipRecord>& records, const uint8_t* memory, uint64_t offset, uint64_t nbytes) {
    for (const ZipRecord& record : records) {
        if (record.header < offset || record.offset - offset > nbytes ||
            record.nbytes > nbytes - (record.offset - offset)) {
            continue;
        }
        const uint8_t* header = memory + (record.header - offset);
        if (std::memcmp(header, "PK\3\4", 4) != 0 || number_at<uint16_t>(header + 26) != record.name.size() ||
            record.header + kHeaderBytes + record.name.size() + number_at<uint16_t>(header + 28) != record.offset) {
            return false;
        }
    }
    return true;
}

}  // namespace fastio
