// Tests the zip directory: what the builder writes is read back, and damage never makes the reader leave the file.
#include <unistd.h>

#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/errors.hpp"
#include "tests/support/check.hpp"
#include "tests/support/unnamed_file.hpp"
#include "zip/entries.hpp"
#include "zip/writer.hpp"

namespace {

std::vector<uint8_t> build(size_t count) {
    fastio::ZipBuilder builder("archive", 64);
    for (size_t index = 0; index < count; ++index) {
        std::string data(index * 37, static_cast<char>('a' + index % 26));
        builder.add_bytes("data/" + std::to_string(index), data.data(), data.size());
    }
    builder.finish();
    CHECK(builder.runs().size() == 1 && builder.size() == builder.literal().size(), "all bytes are one run");
    bool thrown = false;
    try {
        builder.add_bytes("late", "x", 1);
    } catch (const std::logic_error&) {  // others may read the literal in place
        thrown = true;
    }
    CHECK(thrown, "a finished file takes no more records");
    return builder.literal();
}

int file_of(const std::vector<uint8_t>& bytes) {
    int fd = unnamed_file();
    CHECK(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "write");
    return fd;
}

void check_intact() {
    std::vector<uint8_t> bytes = build(40);
    int fd = file_of(bytes);
    for (bool read_local_headers : {false, true}) {
        auto records = fastio::read_directory(fd, bytes.size(), read_local_headers);
        CHECK(records.size() == 40, "%zu records", records.size());
        CHECK(fastio::check_headers(records, bytes.data(), 0, bytes.size()), "headers");
        for (size_t index = 0; index < records.size(); ++index) {
            const fastio::ZipRecord& record = records[index];
            CHECK(record.name == "archive/data/" + std::to_string(index), "name %s", record.name.c_str());
            CHECK(record.nbytes == index * 37, "size of record %zu", index);
            CHECK(index == 0 || bytes[record.offset] == 'a' + index % 26, "place of record %zu", index);
        }
    }
    close(fd);
}

// Damage must lead to a valid directory or to one of these three exceptions. ASan and UBSan detect the rest.
void check_damaged(const std::vector<uint8_t>& bytes) {
    int fd = file_of(bytes);
    for (bool read_local_headers : {false, true}) {
        try {
            for (const fastio::ZipRecord& record : fastio::read_directory(fd, bytes.size(), read_local_headers)) {
                CHECK(record.offset <= bytes.size() && record.nbytes <= bytes.size() - record.offset,
                      "the record lies in the file");
            }
        } catch (const fastio::Malformed&) {
        } catch (const fastio::Truncated&) {
        } catch (const fastio::SystemError&) {
        }
    }
    close(fd);
}

}  // namespace

int main() {
    check_intact();
    std::mt19937_64 random(11);
    std::vector<uint8_t> whole = build(12);
    for (int round = 0; round < 20000; ++round) {
        std::vector<uint8_t> bytes = whole;
        size_t tail = bytes.size() > 1200 ? bytes.size() - 1200 : 0;  // where the directory is
        for (uint64_t edit = 0; edit <= random() % 4; ++edit) {
            size_t at = random() % 4 == 0 ? random() % bytes.size() : tail + random() % (bytes.size() - tail);
            uint64_t value = random() % 3 == 0 ? ~0ULL : random();
            size_t width = std::min<size_t>(1ULL << (random() % 4), bytes.size() - at);
            std::memcpy(&bytes[at], &value, width);
        }
        if (random() % 5 == 0) bytes.resize(random() % bytes.size());
        check_damaged(bytes);
    }
    std::puts("zip: ok");
    return 0;
}
