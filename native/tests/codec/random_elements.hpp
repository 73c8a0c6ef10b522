// Elements for the tests of the codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

// Returns elements of which about `percent` % are not zero; of those some have one bit set, as -0.0 has.
inline std::vector<uint8_t> random_elements(std::mt19937_64& generator, size_t count, size_t width, size_t percent) {
    std::vector<uint8_t> bytes(count * width, 0);
    for (size_t i = 0; i < count; ++i) {
        if (generator() % 100 >= percent) continue;
        if (generator() % 2 == 0) {
            bytes[i * width + generator() % width] = static_cast<uint8_t>(1u << generator() % 8);
        } else {
            for (size_t j = 0; j < width; ++j) bytes[i * width + j] = static_cast<uint8_t>(generator());
        }
    }
    return bytes;
}
