// Tests CRC-32s of memory, computed by several threads.
#include <random>
#include <vector>

#include "checksum/crc32.hpp"
#include "tests/support/check.hpp"
#include "transfer/memory_checksums.hpp"

int main() {
    std::mt19937_64 random_source(3);
    std::vector<uint8_t> memory(40 << 20);
    for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random_source());
    std::vector<fastio::Extent> extents;
    for (uint64_t at = 0; at < memory.size();) {
        const uint64_t nbytes = std::min<uint64_t>(random_source() % 5'000'000, memory.size() - at);
        extents.push_back({at, nbytes, memory.data() + at, true});
        extents.push_back({at + nbytes, 0, memory.data(), true});
        at += nbytes;
    }
    for (unsigned threads : {0U, 1U, 2U, 16U}) {
        const std::vector<uint32_t> values = fastio::memory_checksums(extents, threads);
        CHECK(values.size() == extents.size(), "one for each");
        for (size_t index = 0; index < extents.size(); ++index) {
            const uint32_t expected = fastio::crc32(0, extents[index].address, extents[index].nbytes);
            CHECK(values[index] == expected, "extent %zu by %u threads", index, threads);
        }
    }
    CHECK(fastio::memory_checksums({}, 4).empty(), "none of none");
    return 0;
}
