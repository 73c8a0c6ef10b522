#include "zip/entries.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "zip/directory.hpp"
#include "zip/numbers.hpp"

// Offsets and signatures are those of PKWARE's APPNOTE 6.3, sections 4.3.7 (local header) and 4.3.9 (descriptor).

namespace fastio {

namespace {

constexpr uint16_t kHasDescriptor = 1 << 3;

// Returns where a record's data starts according to its local header.
uint64_t data_offset(const ZipRecord& record, const uint8_t* header) {
    if (std::memcmp(header, "PK\3\4", 4) != 0) throw Malformed(record.name, "no local header where the directory says");
    if (number_at<uint16_t>(header + 26) != record.name.size()) {
        throw Malformed(record.name, "the name in its local header has another length than in the directory");
    }
    return record.header + kHeaderBytes + record.name.size() + number_at<uint16_t>(header + 28);
}

// Has the kernel read all local headers at once: one after the other, each page of a cold file takes a disk's latency.
void begin_reading_headers(const std::vector<ZipRecord>& records, int fd) {
    for (const ZipRecord& record : records) {
        posix_fadvise(fd, static_cast<off_t>(record.header), kHeaderBytes, POSIX_FADV_WILLNEED);
    }
}

// Sets the data offsets of the records, which are sorted; see read_directory().
void set_offsets(std::vector<ZipRecord>& records, const ZipSource& source, uint64_t directory,
                 bool read_local_headers) {
    if (read_local_headers && !source.read) begin_reading_headers(records, source.fd);
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
        if (read_local_headers || limit < earliest + record.nbytes + descriptor || record.offset - earliest > 65535) {
            record.offset = data_offset(record, read_bytes(source, record.header, kHeaderBytes).data());
            if (record.offset > limit || record.nbytes > limit - record.offset) {
                throw Malformed(record.name, "runs into the next record");
            }
        }
    }
}

}  // namespace

std::vector<ZipRecord> read_directory(const ZipSource& source, uint64_t size, bool read_local_headers,
                                      bool* is_standard) {
    Directory directory = find_directory(source, size);
    if (is_standard != nullptr) *is_standard = directory.is_standard;
    std::vector<ZipRecord> records = read_entries(source, size, directory);
    std::stable_sort(records.begin(), records.end(),
                     [](const ZipRecord& one, const ZipRecord& other) { return one.header < other.header; });
    set_offsets(records, source, directory.offset, read_local_headers);
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
