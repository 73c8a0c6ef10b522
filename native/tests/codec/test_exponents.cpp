// Tests the packing of bfloat16 by its exponents: all bits come back, damage is refused, accesses stay in bounds.

#include <cstring>
#include <random>
#include <vector>

#include "codec/exponents.hpp"
#include "support/errors.hpp"
#include "tests/support/check.hpp"

namespace {

using Bytes = std::vector<uint8_t>;
using Elements = std::vector<uint16_t>;

std::mt19937_64 generator(20261127);

// Elements with `exponents` different exponents from `least` on, of which about `zeros` % are 0 or -0.0 instead.
Elements some(size_t count, unsigned least, unsigned exponents, unsigned zeros) {
    Elements elements(count);
    for (uint16_t& element : elements) {
        element = static_cast<uint16_t>((generator() & 0x807F) | (least + generator() % exponents) << 7);
        if (generator() % 100 < zeros) element &= 0x8000;
    }
    return elements;
}

Bytes packed(const Elements& elements) {
    Bytes payload(fastio::exponents_nbytes(elements.data(), elements.size()), 0xA5);
    fastio::exponents_encode(elements.data(), elements.size(), payload.data(), payload.size());
    return payload;
}

bool decodes(const Bytes& payload, Elements& destination) {
    try {
        fastio::exponents_decode(payload.data(), payload.size(), destination.data(), destination.size());
    } catch (const fastio::Refused&) {
        return false;
    }
    return true;
}

// The buffers have the exact size, so that AddressSanitizer detects an access out of bounds.
void check_round_trips() {
    for (const size_t count : {0, 1, 127, 128, 255, 256, 257, 511, 512, 1000}) {
        for (const unsigned least : {0u, 1u, 120u, 240u}) {
            for (const unsigned exponents : {1u, 14u, 15u, 16u}) {
                for (const unsigned zeros : {0u, 10u, 100u}) {
                    const Elements elements = some(count, least, exponents, zeros);
                    Elements back(count, 0xA5A5);
                    CHECK(decodes(packed(elements), back), "%zu elements are unpacked", count);
                    CHECK(back == elements, "%zu elements from %u on, %u exponents", count, least, exponents);
                }
            }
        }
    }
}

void check_sizes() {
    const size_t blocks = 4;
    CHECK(packed(some(blocks * 256, 100, 15, 10)).size() == blocks * 386, "15 exponents and 0 have codes of 4 bits");
    CHECK(packed(Elements(256, 0)).size() == 386, "zeros alone have codes of 4 bits");
    Elements wide(256, 100 << 7);
    wide[7] = 115 << 7;
    CHECK(packed(wide).size() == 514, "16 exponents have codes of 8 bits");
}

void check_damage() {
    const Elements elements = some(700, 100, 15, 10);
    const Bytes payload = packed(elements);
    Elements back(elements.size());
    for (size_t size = 0; size < payload.size(); ++size) {
        CHECK(!decodes(Bytes(payload.begin(), payload.begin() + static_cast<long>(size)), back), "%zu bytes", size);
    }
    Bytes longer = payload;
    longer.push_back(0);
    CHECK(!decodes(longer, back), "more bytes than the elements need");
    for (const uint8_t width : {0, 1, 5, 8, 255}) {
        Bytes wrong = payload;
        wrong[1] = width;
        CHECK(!decodes(wrong, back), "a width of %u", width);
    }
    Elements none;
    CHECK(!decodes(payload, none), "a payload of no elements");
    for (int turn = 0; turn < 2000; ++turn) {  // wrong values, or refused; never out of bounds
        Bytes wrong = payload;
        wrong[generator() % wrong.size()] = static_cast<uint8_t>(generator());
        decodes(wrong, back);
    }
}

void check_changed() {
    Elements elements = some(1000, 100, 15, 10);
    Bytes payload(fastio::exponents_nbytes(elements.data(), elements.size()));
    elements[500] = 0x7F80;  // an infinity: its block needs codes of 8 bits
    bool refused = false;
    try {
        fastio::exponents_encode(elements.data(), elements.size(), payload.data(), payload.size());
    } catch (const fastio::Refused&) {
        refused = true;
    }
    CHECK(refused, "elements that have changed are refused");
}

}  // namespace

int main() {
    check_round_trips();
    check_sizes();
    check_damage();
    check_changed();
    std::printf("ok\n");
}
