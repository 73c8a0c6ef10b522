// Random blobs in a store, with their expected contents.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "block_store/store.hpp"
#include "describe.hpp"
#include "memory/memory.hpp"
#include "tests/support/check.hpp"

namespace rig {

// For one thread. The blobs lie in memory that is not mapped for the device.
class Blobs {
  public:
    Blobs(fastio::BlockStore& store, std::string driver, int64_t first_index = 0)
        : store_(store), driver_(std::move(driver)), first_(first_index), random_(first_index + 17) {}

    uint64_t pick(uint64_t low, uint64_t high) { return low + random_() % (high - low + 1); }
    size_t size() const { return contents_.size(); }

    // Issues the write of a blob of `nbytes`.
    void write(int64_t number, uint64_t nbytes) {
        std::vector<uint8_t>& contents = contents_[number];
        contents.resize(nbytes);
        for (uint64_t at = 0; at < nbytes; at += 8) {
            const uint64_t word = random_();
            std::memcpy(contents.data() + at, &word, std::min<uint64_t>(8, nbytes - at));
        }
        store_.issue(first_ + number, contents.data(), nbytes, true);
    }

    std::optional<fastio::BlockStore::Failure> wait(int64_t number) {
        std::optional<fastio::BlockStore::Failure> failure;
        store_.wait(first_ + number, failure);
        return failure;
    }

    // Reads a blob back and compares it. The blob must exist.
    void check(int64_t number) {
        const std::vector<uint8_t>& contents = contents_.at(number);
        std::vector<uint8_t> got(contents.size(), 0xee);
        store_.issue(first_ + number, got.data(), got.size(), false);
        const auto failure = wait(number);
        CHECK(!failure, "%s", describe(driver_, *failure).c_str());
        CHECK(got == contents, "driver %s: blob %ld reads back unchanged", driver_.c_str(), static_cast<long>(number));
    }

    void free(int64_t number) {
        store_.free(first_ + number);
        freed_.push_back(std::move(contents_.at(number)));
        contents_.erase(number);
    }

    void forget(int64_t number) { contents_.erase(number); }

  private:
    fastio::BlockStore& store_;
    std::string driver_;
    int64_t first_;
    std::mt19937_64 random_;
    std::map<int64_t, std::vector<uint8_t>> contents_;
    std::vector<std::vector<uint8_t>> freed_;  // memory that a write in flight may still read
};

}  // namespace rig
