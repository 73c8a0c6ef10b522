#include "zip/directory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>

#include "support/errors.hpp"
#include "zip/numbers.hpp"

// Offsets and signatures are those of PKWARE's APPNOTE 6.3, sections 4.3.12 (central directory), 4.3.14-16 (end
// records) and 4.4.4 (flags). The checks follow mz_zip_reader_read_central_dir of miniz 3.0.2, which torch contains.

namespace fastio {

namespace {

constexpr uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kEntryBytes = 46;
constexpr uint16_t kMaskedHeader = 1 << 13;
constexpr uint32_t kFolderAttribute = 0x10;  // the MS-DOS attribute

void check_single_part(uint64_t disk, uint64_t directory_disk, uint64_t here, uint64_t count) {
    if (here != count || ((disk != 0 || directory_disk != 0) && (disk != 1 || directory_disk != 1))) {
        throw Malformed("", "its end says that it is one of several parts (disk " + std::to_string(disk) + ", " +
                                std::to_string(here) + " of " + std::to_string(count) +
                                " records); join them with zip -s 0, or restore it from a copy");
    }
}

void check_room(const Directory& found, uint64_t size) {
    if (found.offset > size || found.nbytes > size - found.offset || found.count > found.nbytes / kEntryBytes) {
        throw Malformed("", "the zip directory is said to be larger than the file has room for");
    }
}

// Reads the zip64 end record at `place` into `found`. Returns false if there is none.
bool read_end64(const ZipSource& source, uint64_t place, const uint8_t* locator, Directory& found) {
    std::vector<uint8_t> record = read_bytes(source, place, kEnd64Bytes);
    if (std::memcmp(record.data(), "PK\6\6", 4) != 0) return false;
    uint64_t here = number_at<uint64_t>(&record[24]), count = number_at<uint64_t>(&record[32]);
    uint64_t nbytes = number_at<uint64_t>(&record[40]);
    if (number_at<uint64_t>(&record[4]) < kEnd64Bytes - 12 || here > kMax32 || count > kMax32 || nbytes > kMax32) {
        throw Malformed("", "its zip64 end record holds impossible numbers");
    }
    if (number_at<uint32_t>(locator + 16) != 1) {
        throw Malformed(
            "", "its zip64 end says that it is one of " + std::to_string(number_at<uint32_t>(locator + 16)) + " parts");
    }
    found.disk = number_at<uint32_t>(&record[16]);
    check_single_part(found.disk, number_at<uint32_t>(&record[20]), here, count);
    found.offset = number_at<uint64_t>(&record[48]);
    found.nbytes = nbytes;
    found.count = count;
    return true;
}

// Takes the sizes and the offset from the zip64 extra field, where the 32-bit fields of the entry are all ones.
void apply_zip64(const uint8_t* extra, uint64_t nbytes, ZipRecord& record) {
    bool wide_size = record.size == kMax32, wide_compressed = record.nbytes == kMax32,
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
            if (wide_size) record.size = number_at<uint64_t>(value), value += 8;
            if (wide_compressed) record.nbytes = number_at<uint64_t>(value), value += 8;
            if (wide_header) record.header = number_at<uint64_t>(value);
            return;
        }
        at += length;
    }
    throw Malformed(record.name, "its 64-bit size or offset is missing from the zip directory");
}

// Throws Malformed if the fields of an entry contradict each other, the end records or the size of the file.
void check_entry(const uint8_t* entry, const ZipRecord& record, const Directory& directory, uint64_t size) {
    if (record.method == 0 && record.nbytes != record.size) {
        throw Malformed(record.name, "is stored, but its two sizes differ");
    }
    if (record.size != 0 && record.nbytes == 0) throw Malformed(record.name, "is said to be inflated from no bytes");
    uint16_t disk = number_at<uint16_t>(entry + 34);
    if (disk == 0xFFFF || (disk != directory.disk && disk != 1)) {
        throw Malformed(record.name, "is said to be in another part of the archive (disk " + std::to_string(disk) +
                                         "); join the parts with zip -s 0, or restore the file from a copy");
    }
    if ((record.flags & kMaskedHeader) != 0) throw Malformed(record.name, "its header is said to be encrypted");
    if (record.header > directory.offset || record.nbytes > size ||
        record.header + kHeaderBytes + record.nbytes > size) {
        throw Malformed(record.name, "is said to be outside the file, or behind the zip directory");
    }
    if ((number_at<uint32_t>(entry + 38) & kFolderAttribute) != 0 && record.size != 0) {
        throw Malformed(record.name, "is marked as a folder, but has bytes, which torch would not read");
    }
}

// Returns how many bytes from the end miniz searches for the end record: the last 4096 bytes, then up to 16 earlier
// blocks, each of which overlaps the next by 3 bytes and must fit into the file.
uint64_t end_search_nbytes(uint64_t size) {
    return size < 4096 ? size : 4096 + 4093 * std::min<uint64_t>((size - 4096) / 4093, 16);
}

}  // namespace

std::vector<uint8_t> read_bytes(const ZipSource& source, uint64_t offset, uint64_t nbytes) {
    if (source.read) return source.read(offset, nbytes);
    std::vector<uint8_t> bytes(nbytes);
    uint64_t got = 0;
    while (got < nbytes) {
        ssize_t count = pread(source.fd, bytes.data() + got, nbytes - got, static_cast<off_t>(offset + got));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) throw SystemError(errno, "read", offset + got);
        if (count == 0) throw Truncated(offset + got);
        got += static_cast<uint64_t>(count);
    }
    return bytes;
}

Directory find_directory(const ZipSource& source, uint64_t size) {
    if (size < kEndBytes) throw Malformed("", "too short for a zip file: " + std::to_string(size) + " bytes");
    // torch writes the end record as the last bytes of the file.
    uint64_t tail = std::min(size, kEndBytes + kLocatorBytes + kEnd64Bytes);
    std::vector<uint8_t> bytes = read_bytes(source, size - tail, tail);
    uint64_t at = tail - kEndBytes;
    bool is_standard = std::memcmp(&bytes[at], "PK\5\6", 4) == 0 && number_at<uint16_t>(&bytes[at + 20]) == 0;
    if (!is_standard) {
        uint64_t farthest = end_search_nbytes(size);
        tail = std::min(size, farthest + kLocatorBytes);
        bytes = read_bytes(source, size - tail, tail);
        at = tail - kEndBytes;
        while (std::memcmp(&bytes[at], "PK\5\6", 4) != 0) {
            if (at == 0 || tail - at == farthest) {
                throw Malformed("", "no end of a zip directory in its last " + std::to_string(farthest) +
                                        " bytes; the file is cut short, or is no zip file");
            }
            --at;
        }
    }
    const uint8_t* end = &bytes[at];
    uint64_t end_offset = size - tail + at;
    Directory found{number_at<uint32_t>(end + 16), number_at<uint32_t>(end + 12), number_at<uint16_t>(end + 10),
                    number_at<uint16_t>(end + 4), is_standard};
    bool wide = false;
    if (end_offset >= kLocatorBytes + kEnd64Bytes && std::memcmp(end - kLocatorBytes, "PK\6\7", 4) == 0) {
        const uint8_t* locator = end - kLocatorBytes;
        uint64_t place = number_at<uint64_t>(locator + 8);
        if (place > size - kEnd64Bytes) throw Malformed("", "the zip64 end record is said to be outside the file");
        wide = read_end64(source, place, locator, found);
        found.is_standard = is_standard && wide;
    }
    if (!wide) check_single_part(found.disk, number_at<uint16_t>(end + 6), number_at<uint16_t>(end + 8), found.count);
    check_room(found, size);
    return found;
}

std::vector<ZipRecord> read_entries(const ZipSource& source, uint64_t size, const Directory& directory) {
    std::vector<uint8_t> bytes = read_bytes(source, directory.offset, directory.nbytes);
    std::vector<ZipRecord> records;
    records.reserve(directory.count);
    std::unordered_set<std::string> names;
    uint64_t at = 0;
    for (uint64_t index = 0; index < directory.count; ++index) {
        if (directory.nbytes - at < kEntryBytes) throw Malformed("", "the zip directory is cut short");
        const uint8_t* entry = &bytes[at];
        if (std::memcmp(entry, "PK\1\2", 4) != 0)
            throw Malformed("", "the zip directory holds bytes that are no entry");
        uint64_t name = number_at<uint16_t>(entry + 28), extra = number_at<uint16_t>(entry + 30);
        uint64_t length = kEntryBytes + name + extra + number_at<uint16_t>(entry + 32);
        if (length > directory.nbytes - at) throw Malformed("", "the zip directory is cut short");
        ZipRecord record{std::string(reinterpret_cast<const char*>(entry) + kEntryBytes, name),
                         number_at<uint32_t>(entry + 42),
                         0,
                         0,
                         number_at<uint32_t>(entry + 16),
                         number_at<uint16_t>(entry + 10),
                         number_at<uint16_t>(entry + 8),
                         number_at<uint32_t>(entry + 24)};
        record.nbytes = number_at<uint32_t>(entry + 20);
        apply_zip64(entry + kEntryBytes + name, extra, record);
        if (!names.insert(record.name).second) throw Malformed(record.name, "is in the zip directory twice");
        check_entry(entry, record, directory, size);
        records.push_back(std::move(record));
        at += length;
    }
    return records;
}

}  // namespace fastio
