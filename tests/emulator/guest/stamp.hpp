// The contents of a block in these tests: its place and its write, so that a wrong block shows the error.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "block_store/devices.hpp"

namespace rig {

constexpr uint64_t kWords = fastio::kStoreBlock / sizeof(uint64_t);

struct Stamp {
    uint32_t device;
    uint32_t generation;  // the number of the write, from 1 over the whole test
    uint64_t block;
    uint64_t run;  // random, so that blocks of an earlier test differ
};

inline uint64_t mixed(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

inline void put_stamp(uint8_t* memory, const Stamp& stamp) {
    auto* words = reinterpret_cast<uint64_t*>(memory);
    words[0] = stamp.run;
    words[1] = static_cast<uint64_t>(stamp.device) << 32 | stamp.generation;
    words[2] = stamp.block;
    const uint64_t base = mixed(words[0] ^ mixed(words[1] ^ mixed(words[2])));
    for (uint64_t word = 3; word < kWords; ++word) words[word] = base + word * 0x9e3779b97f4a7c15;
}

// Reads the stamp. Returns whether the whole block is from one write.
inline bool read_stamp(const uint8_t* memory, Stamp& stamp) {
    const auto* words = reinterpret_cast<const uint64_t*>(memory);
    stamp = {static_cast<uint32_t>(words[1] >> 32), static_cast<uint32_t>(words[1]), words[2], words[0]};
    const uint64_t base = mixed(words[0] ^ mixed(words[1] ^ mixed(words[2])));
    uint64_t different = 0;
    for (uint64_t word = 3; word < kWords; ++word) different |= words[word] ^ (base + word * 0x9e3779b97f4a7c15);
    return different == 0;
}

// Checks that a block holds one of these writes to this place. Returns the error, or an empty string.
inline std::string judge(const uint8_t* memory, const Stamp& expected, const std::vector<uint32_t>& generations,
                         uint32_t& found) {
    Stamp stamp;
    char text[256];
    const bool whole = read_stamp(memory, stamp);
    if (!whole || stamp.run != expected.run) {
        std::snprintf(text, sizeof text, "%s: device %u block %" PRIu64, whole ? "lost (of an earlier test)" : "torn",
                      expected.device, expected.block);
        return text;
    }
    if (stamp.device != expected.device || stamp.block != expected.block) {
        std::snprintf(text, sizeof text, "misdirected: device %u block %" PRIu64 " holds device %u block %" PRIu64,
                      expected.device, expected.block, stamp.device, stamp.block);
        return text;
    }
    found = stamp.generation;
    for (uint32_t generation : generations)
        if (generation == found) return {};
    std::snprintf(text, sizeof text, "lost: device %u block %" PRIu64 " is of write %u, the latest is %u",
                  expected.device, expected.block, found, generations.back());
    return text;
}

}  // namespace rig
