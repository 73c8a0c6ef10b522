#include "model.hpp"

#include <fstream>

#include "tests/support/check.hpp"

namespace rig {

Model::Model(uint64_t run, const std::vector<uint64_t>& blocks) : run_(run) {
    for (uint64_t count : blocks) allowed_.emplace_back(count);
}

Model::Model(const std::string& path) {
    std::ifstream in(path);
    size_t devices = 0;
    in >> run_ >> devices;
    for (size_t device = 0; device < devices; ++device) {
        uint64_t blocks = 0;
        in >> blocks;
        auto& rows = allowed_.emplace_back(blocks);
        for (std::vector<uint32_t>& row : rows) {
            size_t count = 0;
            in >> count;
            row.resize(count);
            for (uint32_t& generation : row) in >> generation;
        }
    }
    CHECK(bool(in) && devices > 0, "%s holds a model", path.c_str());
}

void Model::save(const std::string& path) const {
    std::ofstream out(path);
    out << run_ << ' ' << allowed_.size();
    for (const auto& rows : allowed_) {
        out << '\n' << rows.size();
        for (const std::vector<uint32_t>& row : rows) {
            out << ' ' << row.size();
            for (uint32_t generation : row) out << ' ' << generation;
        }
    }
    out.close();
    CHECK(bool(out), "the model is written to %s", path.c_str());
}

void Model::wrote(unsigned device, uint64_t first, uint64_t count, uint32_t generation, bool failed) {
    for (uint64_t block = first; block < first + count; ++block) {
        std::vector<uint32_t>& row = allowed_[device][block];
        if (!failed) row.clear();
        // A block that was never written is unknown, and stays so after a failed write.
        if (!failed || !row.empty()) row.push_back(generation);
    }
}

std::string Model::judge_read(unsigned device, uint64_t first, uint64_t count, const uint8_t* memory) {
    for (uint64_t number = 0; number < count; ++number) {
        std::vector<uint32_t>& row = allowed_[device][first + number];
        if (row.empty()) continue;
        uint32_t found = 0;
        std::string wrong = judge(memory + number * fastio::kStoreBlock, {device, 0, first + number, run_}, row, found);
        if (!wrong.empty()) return wrong;
        row.assign(1, found);
    }
    return {};
}

}  // namespace rig
