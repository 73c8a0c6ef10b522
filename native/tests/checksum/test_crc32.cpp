// Tests every CRC-32 kernel that this processor can run against a bitwise reference.

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "checksum/block_crcs.hpp"
#include "checksum/crc32.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::detail::Crc32Kernel;
using Bytes = std::vector<uint8_t>;

std::mt19937_64 generator{20240229};

uint64_t below(uint64_t bound) { return generator() % bound; }

Bytes random_bytes(size_t nbytes) {
    Bytes bytes(nbytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
    return bytes;
}

// The definition, bit by bit; it shares no code with the kernels.
uint32_t reference(uint32_t value, const uint8_t* data, size_t nbytes) {
    uint32_t state = ~value;
    for (size_t i = 0; i < nbytes; ++i) {
        state ^= data[i];
        for (int bit = 0; bit < 8; ++bit) state = (state & 1u) ? (state >> 1) ^ 0xEDB88320u : state >> 1;
    }
    return ~state;
}

void check_one(const Crc32Kernel& kernel, size_t nbytes) {
    // The buffers have the exact size, so that AddressSanitizer detects an access out of bounds.
    const size_t shift = below(64);
    const Bytes source = random_bytes(shift + nbytes);
    const uint8_t* data = source.data() + shift;
    const uint32_t value = static_cast<uint32_t>(generator());
    const uint32_t expected = reference(value, data, nbytes);

    const uint32_t updated = ~kernel.update(~value, data, nbytes);
    CHECK(updated == expected, "%s, %zu bytes: got %08" PRIx32 ", expected %08" PRIx32, kernel.name, nbytes, updated,
          expected);

    for (auto [name, copy] : {std::pair{"copy", kernel.copy}, {"streaming copy", kernel.streaming_copy}}) {
        const size_t destination_shift = below(64);
        Bytes destination(destination_shift + nbytes, 0xA5);
        const uint32_t copied = ~copy(~value, destination.data() + destination_shift, data, nbytes);
        CHECK(copied == expected, "%s %s, %zu bytes: got %08" PRIx32 ", expected %08" PRIx32, kernel.name, name, nbytes,
              copied, expected);
        for (size_t i = 0; i < destination.size(); ++i) {
            const uint8_t wanted = i < destination_shift ? 0xA5 : data[i - destination_shift];
            CHECK(destination[i] == wanted, "%s %s, %zu bytes: byte %zu is wrong", kernel.name, name, nbytes, i);
        }
    }
}

void check_lengths(const Crc32Kernel& kernel) {
    for (size_t nbytes = 0; nbytes <= 1100; ++nbytes) check_one(kernel, nbytes);
    for (int round = 0; round < 60; ++round) check_one(kernel, below(70'000));
    for (size_t nbytes : {4096, 12287, 12288, 12289, 24576, 65536, 1 << 20}) check_one(kernel, nbytes);
}

// The CRC computed in pieces equals that of the whole.
void check_continued(const Crc32Kernel& kernel) {
    const Bytes bytes = random_bytes(40'000);
    const uint32_t whole = reference(0, bytes.data(), bytes.size());
    for (int round = 0; round < 20; ++round) {
        uint32_t state = ~0u;
        for (size_t at = 0; at < bytes.size();) {
            const size_t piece = std::min<size_t>(bytes.size() - at, below(3000));
            state = kernel.update(state, bytes.data() + at, piece);
            at += piece;
        }
        CHECK(~state == whole, "%s in pieces: got %08" PRIx32 ", expected %08" PRIx32, kernel.name, ~state, whole);
    }
}

// The CRC is that of the copied bytes, even while another thread rewrites the source.
void check_changing_source(const Crc32Kernel& kernel, decltype(Crc32Kernel::copy) copy) {
    constexpr size_t NBYTES = 5000;
    std::vector<std::atomic<uint8_t>> source(NBYTES);
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        for (uint8_t value = 0; !stop.load(std::memory_order_relaxed); ++value) {
            for (auto& byte : source) byte.store(value, std::memory_order_relaxed);
        }
    });
    Bytes destination(NBYTES);
    for (int round = 0; round < 2000; ++round) {
        const uint8_t* data = reinterpret_cast<const uint8_t*>(source.data());
        const uint32_t copied = ~copy(~0u, destination.data(), data, NBYTES);
        const uint32_t expected = reference(0, destination.data(), NBYTES);
        if (copied != expected) stop = true;
        CHECK(copied == expected, "%s: the CRC of a changing source equals that of its copy", kernel.name);
    }
    stop = true;
    writer.join();
}

void check_combine() {
    for (int round = 0; round < 2000; ++round) {
        const Bytes bytes = random_bytes(below(round < 1000 ? 40 : 3000));
        const size_t cut = below(bytes.size() + 1);
        const uint32_t first = reference(0, bytes.data(), cut);
        const uint32_t second = reference(0, bytes.data() + cut, bytes.size() - cut);
        CHECK(fastio::crc32_combine(first, second, bytes.size() - cut) == reference(0, bytes.data(), bytes.size()),
              "combine of %zu and %zu bytes", cut, bytes.size() - cut);
    }
    // Lengths beyond any test's memory: moving past a + b bytes equals moving past a, then past b.
    for (int round = 0; round < 2000; ++round) {
        const uint64_t a = generator() >> (1 + below(62));
        const uint64_t b = generator() >> (1 + below(62));
        const uint32_t value = static_cast<uint32_t>(generator());
        const uint32_t twice = fastio::crc32_combine(fastio::crc32_combine(value, 0, a), 0, b);
        CHECK(twice == fastio::crc32_combine(value, 0, a + b), "combine past %" PRIu64 " + %" PRIu64, a, b);
    }
    // 5 GiB of zeros by doubling: combining the CRC of n zeros with itself gives that of 2n. The expected value is
    // zlib's.
    uint32_t doubled = reference(0, Bytes(5, 0).data(), 5);
    for (uint64_t nbytes = 5; nbytes < (5ull << 30); nbytes *= 2) {
        doubled = fastio::crc32_combine(doubled, doubled, nbytes);
    }
    CHECK(doubled == 0x193838C3u, "5 GiB of zeros: got %08" PRIx32, doubled);
}

void check_blocks() {
    for (int round = 0; round < 500; ++round) {
        const Bytes bytes = random_bytes(below(3000));
        const uint64_t block = 1 + below(1000);
        const auto crcs = fastio::crc32_blocks(bytes.data(), bytes.size(), block);
        CHECK(crcs.size() == (bytes.size() + block - 1) / block, "one CRC a block");
        for (size_t number = 0; number < crcs.size(); ++number) {
            const uint64_t at = number * block;
            const uint64_t length = std::min<uint64_t>(block, bytes.size() - at);
            CHECK(crcs[number] == reference(0, bytes.data() + at, length), "block %zu", number);
        }
        CHECK(fastio::crc32_of_blocks(crcs.data(), crcs.size(), bytes.size(), block) ==
                  reference(0, bytes.data(), bytes.size()),
              "%zu bytes from the CRCs of blocks of %" PRIu64, bytes.size(), block);
    }
}

void check_public() {
    const char* digits = "123456789";  // the check value of CRC-32/ISO-HDLC
    CHECK(fastio::crc32(0, digits, 9) == 0xCBF43926u, "check value");
    CHECK(fastio::crc32(0, nullptr, 0) == 0, "no bytes");
    CHECK(fastio::crc32(0x12345678u, nullptr, 0) == 0x12345678u, "no bytes, continued");
    CHECK(fastio::crc32_copy(7, nullptr, nullptr, 0) == 7, "no bytes, copied");
    CHECK(fastio::crc32_streaming_copy(7, nullptr, nullptr, 0) == 7, "no bytes, copied past the caches");
    for (auto* copied : {fastio::crc32_copy, fastio::crc32_streaming_copy}) {
        char copy[9];
        CHECK(copied(0, copy, digits, 9) == 0xCBF43926u, "check value, copied");
        CHECK(std::memcmp(copy, digits, 9) == 0, "copy");
    }
    CHECK(std::strcmp(fastio::crc32_kernel(), fastio::detail::crc32_kernels().front().name) == 0, "kernel name");
}

}  // namespace

int main() {
    for (const Crc32Kernel& kernel : fastio::detail::crc32_kernels()) {
        std::printf("%s\n", kernel.name);
        check_lengths(kernel);
        check_continued(kernel);
        check_changing_source(kernel, kernel.copy);
        check_changing_source(kernel, kernel.streaming_copy);
    }
    check_combine();
    check_blocks();
    check_public();
    std::printf("ok\n");
}
