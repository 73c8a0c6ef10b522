// Tests every NH kernel against its definition, and digests against byte comparison: exactly the changed blocks are
// copied.

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "checksum/crc32.hpp"
#include "checksum/digests.hpp"
#include "checksum/nh_hash.hpp"
#include "support/errors.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::Digests;
using Bytes = std::vector<uint8_t>;

constexpr uint64_t kBlock = Digests::kBlock;

std::mt19937_64 generator{20261121};

uint64_t below(uint64_t bound) { return generator() % bound; }

size_t blocks_of(uint64_t nbytes) { return static_cast<size_t>((nbytes + kBlock - 1) / kBlock); }

// The definition, with the paper's indices; sums wrap modulo 2^64.
fastio::NhDigest reference(const uint32_t* key, const uint8_t* data, size_t nbytes) {
    fastio::NhDigest sums{};
    for (size_t pass = 0; pass < sums.size(); ++pass) {
        for (size_t pair = 0; pair < nbytes / 8; ++pair) {
            uint64_t factors[2];
            for (size_t i : {0, 1}) {
                uint32_t word;
                std::memcpy(&word, data + 8 * pair + 4 * i, sizeof(word));
                factors[i] = (uint64_t{word} + key[2 * pair + i + 2 * pass]) % (uint64_t{1} << 32);
            }
            sums[pass] += factors[0] * factors[1];
        }
    }
    return sums;
}

void check_kernels() {
    for (size_t nbytes = 0; nbytes <= 10 * fastio::kNhStride; nbytes += fastio::kNhStride) {
        std::vector<uint32_t> key(nbytes / 4 + fastio::kNhExtraKeyWords);
        for (uint32_t& word : key) word = static_cast<uint32_t>(generator());
        const size_t shift = below(64);
        for (bool ones : {false, true}) {
            Bytes data(shift + nbytes, 0xFF);
            if (!ones) {
                for (uint8_t& byte : data) byte = static_cast<uint8_t>(generator());
            }
            const auto expected = reference(key.data(), data.data() + shift, nbytes);
            for (const auto& kernel : fastio::detail::nh_kernels()) {
                CHECK(kernel.digest(key.data(), data.data() + shift, nbytes) == expected, "%s, %zu bytes", kernel.name,
                      nbytes);
            }
        }
    }
    for (const auto& kernel : fastio::detail::nh_kernels()) std::printf("%s\n", kernel.name);
}

// The buffers have the exact size and odd addresses, so that AddressSanitizer detects an access out of bounds.
void check_changes(uint64_t nbytes, bool zeros) {
    const size_t shift = below(8), first = below(3);
    Bytes source(shift + nbytes), target(shift + nbytes, 0xA5);
    if (!zeros) {
        for (uint8_t& byte : source) byte = static_cast<uint8_t>(generator());
    }
    Digests digests(first + blocks_of(nbytes));
    auto copy = [&] {  // whether the checksum is right
        const uint32_t crc = digests.copy(first, target.data() + shift, source.data() + shift, nbytes);
        return crc == fastio::crc32(0, source.data() + shift, nbytes);
    };
    auto update = [&] { return digests.update(first, target.data() + shift, source.data() + shift, nbytes); };
    auto same = [&] { return nbytes == 0 || std::memcmp(target.data() + shift, source.data() + shift, nbytes) == 0; };

    CHECK(copy() && same(), "all %zu bytes are copied", static_cast<size_t>(nbytes));
    CHECK(!update(), "none of %zu unchanged bytes is copied", static_cast<size_t>(nbytes));
    for (int change = 0; nbytes > 0 && change < 40; ++change) {
        // Change the first byte, the last or any: flip one bit, and at times swap two bytes, which keeps their sum.
        const uint64_t at = change == 0 ? 0 : change == 1 ? nbytes - 1 : below(nbytes);
        source[shift + at] ^= static_cast<uint8_t>(1u << below(8));
        if (change % 3 == 2 && at + 8 < nbytes) std::swap(source[shift + at], source[shift + at + 8]);
        const bool differs = !same(), first_differs = differs && at < kBlock;
        // A swap may cross the end of the first block.
        if (!first_differs || at + 8 < std::min(kBlock, nbytes)) {
            CHECK(digests.differs(first, source.data() + shift, nbytes) == first_differs,
                  "the first block of %zu bytes", static_cast<size_t>(nbytes));
        }
        CHECK(update() == differs && same(), "a change at %zu of %zu bytes", static_cast<size_t>(at),
              static_cast<size_t>(nbytes));
    }
    // Only changed blocks are written.
    if (nbytes > 2 * kBlock) {
        target[shift] ^= 1;
        source[shift + kBlock] ^= 1;
        CHECK(update() && target[shift] != source[shift], "an unchanged block is not written");
        CHECK(target[shift + kBlock] == source[shift + kBlock], "a changed block is written");
        CHECK(copy() && same(), "without compare, all is copied");
    }
}

// Words that change places are noticed, even if they move by the key shift between passes.
void check_order() {
    Bytes source(kBlock), target(kBlock);
    for (uint8_t& byte : source) byte = static_cast<uint8_t>(generator());
    Digests digests(1);
    digests.copy(0, target.data(), source.data(), kBlock);
    for (size_t by : {4, 8, 16, 32, 64, 4096}) {
        Bytes moved(source);
        std::rotate(moved.begin(), moved.begin() + static_cast<ptrdiff_t>(by), moved.end());
        CHECK(digests.update(0, target.data(), moved.data(), kBlock), "moved by %zu bytes", by);
        digests.copy(0, target.data(), source.data(), kBlock);
    }
}

void check_limits() {
    Bytes source(kBlock + 1), target(kBlock + 1);
    for (size_t first : {size_t{1}, size_t{3}, SIZE_MAX}) {
        bool refused = false;
        for (bool whole : {true, false}) {
            refused = false;
            try {
                whole ? (void)Digests(2).copy(first, target.data(), source.data(), kBlock + 1)
                      : (void)Digests(2).update(first, target.data(), source.data(), kBlock + 1);
            } catch (const fastio::Refused&) {
                refused = true;
            }
            CHECK(refused, "copying blocks from %zu on is refused", first);
        }
        refused = false;
        try {
            Digests(2).differs(first, source.data(), kBlock + 1);
        } catch (const fastio::Refused&) {
            refused = true;
        }
        CHECK(refused, "comparing blocks from %zu on is refused", first);
    }
}

}  // namespace

int main() {
    check_kernels();
    for (uint64_t nbytes : {uint64_t{0}, uint64_t{1}, uint64_t{63}, uint64_t{64}, uint64_t{65}, kBlock - 1, kBlock,
                            kBlock + 1, 3 * kBlock, 5 * kBlock + 17}) {
        check_changes(nbytes, false);
        check_changes(nbytes, true);
    }
    check_order();
    check_limits();
    std::printf("ok\n");
}
