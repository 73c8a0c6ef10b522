// A model of the disks' blocks, which can be saved to a file for another program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stamp.hpp"

namespace rig {

class Model {
  public:
    Model(uint64_t run, const std::vector<uint64_t>& blocks);
    explicit Model(const std::string& path);  // loads what save() wrote

    uint64_t run() const { return run_; }
    size_t devices() const { return allowed_.size(); }
    uint64_t blocks(unsigned device) const { return allowed_[device].size(); }
    // The writes that the block may hold: several after a failed write; empty if its contents are unknown.
    const std::vector<uint32_t>& allowed(unsigned device, uint64_t block) const { return allowed_[device][block]; }

    void wrote(unsigned device, uint64_t first, uint64_t count, uint32_t generation, bool failed);
    // Checks blocks that were read. A block that may hold one of several writes is known from then on. Returns the
    // error, or an empty string.
    std::string judge_read(unsigned device, uint64_t first, uint64_t count, const uint8_t* memory);

    void save(const std::string& path) const;

  private:
    uint64_t run_;
    std::vector<std::vector<std::vector<uint32_t>>> allowed_;  // device, block
};

constexpr char kModelFile[] = "/tmp/model";

}  // namespace rig
