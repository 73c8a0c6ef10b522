// The bad blocks of the emulated disk at FAULTY, from the environment (see machine.py).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>

namespace rig {

struct Faults {
    std::set<uint64_t> reads, writes;
};

inline std::set<uint64_t> blocks_of(const char* name) {
    const char* value = std::getenv(name);
    std::set<uint64_t> blocks;
    std::istringstream list(value == nullptr ? "" : value);
    for (std::string number; std::getline(list, number, ',');) blocks.insert(std::stoull(number));
    return blocks;
}

inline Faults faults_of(const std::string& place) {
    const char* faulty = std::getenv("FAULTY");
    if (faulty == nullptr || place != faulty) return {};
    return {blocks_of("BAD_READS"), blocks_of("BAD_WRITES")};
}

inline bool touches(const std::set<uint64_t>& bad, uint64_t first, uint64_t count) {
    const auto at = bad.lower_bound(first);
    return at != bad.end() && *at < first + count;
}

}  // namespace rig
