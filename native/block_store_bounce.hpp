// Aligned memory for what a device cannot reach as it lies: unaligned addresses, and the last, partial block.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory.hpp"

namespace fastio {

// A few slices of one mapping, made when the first is asked for. Tensors that are aligned never need it.
class Bounce {
  public:
    static constexpr uint64_t kSlice = 512 << 10;

    // A slice, or null while all are in use. Throws SystemError where there is no memory.
    uint8_t* take() {
        if (!mapping_) {
            mapping_ = std::make_unique<Mapping>(kSlices * kSlice);
            for (uint64_t slice = kSlices; slice > 0; --slice) free_.push_back(mapping_->data() + (slice - 1) * kSlice);
        }
        if (free_.empty()) return nullptr;
        uint8_t* slice = free_.back();
        free_.pop_back();
        return slice;
    }

    void give_back(uint8_t* slice) { free_.push_back(slice); }

  private:
    static constexpr uint64_t kSlices = 16;

    std::unique_ptr<Mapping> mapping_;
    std::vector<uint8_t*> free_;
};

}  // namespace fastio
