// Runs the GPU source crc32.cu on the emulated device. The CRCs must be those of crc32.hpp, without an access out of
// bounds.
//
// Another seed and more rounds: test_crc32_cu 7 10000

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "checksum/crc32.hpp"
#include "checksum/crc32_polynomial.hpp"
#include "tests/support/check.hpp"
#include "tests/warp_emulator/cuda.hpp"
#include "tests/warp_emulator/guarded.hpp"

namespace {

#include "checksum/crc32.cu"

static_assert(X_0 == fastio::detail::x_power(0) && X_32 == fastio::detail::x_power(32) &&
              X_1024 == fastio::detail::x_power(1024) && X_0 >> 24 == fastio::detail::x_power(24));

using warp_emulator::Against;
using warp_emulator::Guarded;

std::mt19937_64 generator;
unsigned cases = 0;

uint64_t below(uint64_t limit) { return generator() % limit; }

Against any_end() { return below(2) == 0 ? Against::BEGIN : Against::END; }

// The CRC-32 of each range, as crc32_of_ranges() of fastio/devices/crc32_cuda.py computes it.
std::vector<uint32_t> crc32_of_ranges(warp_emulator::Device& device,
                                      const std::vector<std::unique_ptr<Guarded>>& ranges, uint64_t piece) {
    Guarded table(ranges.size() * 24, any_end());
    uint64_t pieces = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
        table.as<u64>()[3 * i] = reinterpret_cast<u64>(ranges[i]->data());
        table.as<u64>()[3 * i + 1] = ranges[i]->size();
        table.as<u64>()[3 * i + 2] = pieces;
        pieces += (ranges[i]->size() + piece - 1) / piece;
    }
    Guarded remainders(pieces * 4, any_end());
    const unsigned warps = 1 + static_cast<unsigned>(below(8));
    device.launch(static_cast<unsigned>((pieces + warps - 1) / warps + below(2)), warps * 32,
                  [&] { crc32_pieces(table.as<u64>(), ranges.size(), piece, pieces, remainders.as<u32>()); });
    std::vector<uint32_t> values;
    const uint32_t* remainder = remainders.as<u32>();
    for (const auto& range : ranges) {
        uint32_t whole = 0;
        for (uint64_t at = 0; at < range->size(); at += piece) {
            whole = fastio::crc32_combine(whole, *remainder++, std::min(piece, range->size() - at));
        }
        values.push_back(~fastio::crc32_combine(~0u, whole, range->size()));
    }
    return values;
}

// Random bytes, or bytes of one value, at an address with any distance from a multiple of 256.
std::unique_ptr<Guarded> range_of(size_t nbytes) {
    auto range = std::make_unique<Guarded>(nbytes, any_end(), below(256), below(2) == 0 ? 1 : 256);
    const bool equal = below(8) == 0;
    uint8_t byte = below(2) == 0 ? 0 : 0xFF;
    for (size_t i = 0; i < nbytes; ++i) range->data()[i] = equal ? byte : static_cast<uint8_t>(generator());
    return range;
}

void check(warp_emulator::Device& device, const std::vector<size_t>& sizes, uint64_t piece) {
    std::vector<std::unique_ptr<Guarded>> ranges;
    for (size_t nbytes : sizes) ranges.push_back(range_of(nbytes));
    const std::vector<uint32_t> values = crc32_of_ranges(device, ranges, piece);
    for (size_t i = 0; i < sizes.size(); ++i, ++cases) {
        const uint32_t expected = fastio::crc32(0, ranges[i]->data(), sizes[i]);
        CHECK(values[i] == expected, "%zu bytes at %p in pieces of %" PRIu64 ": got %08" PRIx32 ", expected %08" PRIx32,
              sizes[i], static_cast<void*>(ranges[i]->data()), piece, values[i], expected);
    }
}

}  // namespace

int main(int argc, char** argv) {
    generator.seed(argc > 1 ? std::stoull(argv[1]) : 20261126);
    const int rounds = argc > 2 ? std::stoi(argv[2]) : 200;
    warp_emulator::Device device(generator());
    for (size_t nbytes = 0; nbytes < 600; ++nbytes) check(device, {nbytes}, 1 + below(700));
    for (int round = 0; round < rounds; ++round) {
        std::vector<size_t> sizes(below(12));
        for (size_t& nbytes : sizes) nbytes = below(4) == 0 ? 0 : below(round % 8 == 0 ? 60'000 : 3000);
        check(device, sizes, 1 + below(round % 2 == 0 ? 300 : 20'000));
    }
    for (const uint64_t piece : {4096, 65536 + 4, 1 << 20, 1 << 30}) {
        check(device, {1 << 20, below(3 << 20), 0, (1 << 20) + 1}, piece);
    }
    std::printf("ok: %u cases\n", cases);
}
