// Tests every CSR-128 kernel: payloads equal those of a simple reference, damage is refused, accesses stay in bounds.

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "codec/csr.hpp"
#include "support/errors.hpp"
#include "tests/codec/random_elements.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::CsrKernel;
using Bytes = std::vector<uint8_t>;

std::mt19937_64 generator(20260801);

size_t below(size_t limit) { return generator() % limit; }

// The format of csr.hpp, element by element.
Bytes reference(const Bytes& source, size_t itemsize) {
    const size_t count = source.size() / itemsize;
    const size_t rows = (count + 127) / 128;
    Bytes payload((rows * 20 + 7) / 8 * 8, 0);
    uint32_t nonzeros = 0;
    for (size_t i = 0; i < count; ++i) {
        if (i % 128 == 0) std::memcpy(payload.data() + rows * 16 + i / 128 * 4, &nonzeros, 4);
        const uint8_t* element = source.data() + i * itemsize;
        if (std::all_of(element, element + itemsize, [](uint8_t byte) { return byte == 0; })) continue;
        payload[i / 8] |= static_cast<uint8_t>(1u << i % 8);
        payload.insert(payload.end(), element, element + itemsize);
        ++nonzeros;
    }
    return payload;
}

bool decodes(const CsrKernel& kernel, const Bytes& payload, Bytes& destination, size_t itemsize) {
    try {
        csr_decode(kernel, payload.data(), payload.size(), destination.data(), destination.size() / itemsize, itemsize);
    } catch (const fastio::Refused&) {
        return false;
    }
    return true;
}

// The buffers have the exact size, so that AddressSanitizer detects an access out of bounds.
void check_round_trip(const CsrKernel& kernel, size_t count, size_t itemsize, size_t percent) {
    const Bytes source = random_elements(generator, count, itemsize, percent);
    const Bytes expected = reference(source, itemsize);
    const uint64_t nonzeros = csr_count(kernel, source.data(), count, itemsize);
    const uint64_t nbytes = fastio::csr_nbytes(count, itemsize, nonzeros);
    CHECK(nbytes == expected.size(), "%s, %zu x %zu: %zu bytes, expected %zu", kernel.name, count, itemsize,
          static_cast<size_t>(nbytes), expected.size());
    Bytes payload(expected.size(), 0xA5);
    csr_encode(kernel, source.data(), count, itemsize, payload.data(), payload.size());
    CHECK(payload == expected, "%s, %zu x %zu, %zu %%: the payload equals the reference", kernel.name, count, itemsize,
          percent);
    Bytes back(source.size(), 0xA5);
    CHECK(decodes(kernel, payload, back, itemsize), "%s, %zu x %zu: the payload is accepted", kernel.name, count,
          itemsize);
    CHECK(back == source, "%s, %zu x %zu, %zu %%: decodes to the source", kernel.name, count, itemsize, percent);
}

void check_round_trips(const CsrKernel& kernel, size_t itemsize) {
    for (size_t count = 0; count <= 400; ++count) check_round_trip(kernel, count, itemsize, below(101));
    for (size_t percent : {0, 1, 40, 99, 100}) {
        for (size_t count : {128, 32 * 128 - 1, 32 * 128, 33 * 128 + 1}) {
            check_round_trip(kernel, count, itemsize, percent);
        }
    }
    for (int round = 0; round < 20; ++round) check_round_trip(kernel, below(70'000), itemsize, below(101));
}

// A flipped bit in the bits, pointers or padding, and a payload of the wrong length, are refused, without accesses out
// of bounds. The codec does not protect the values: the store checks those of a payload on disk.
void check_damage(const CsrKernel& kernel, size_t itemsize) {
    for (int round = 0; round < 300; ++round) {
        const size_t count = 1 + below(round < 200 ? 1000 : 10'000);
        const Bytes source = random_elements(generator, count, itemsize, below(101));
        const Bytes whole = reference(source, itemsize);
        const size_t head = (count + 127) / 128 * 20;
        Bytes back(source.size());
        Bytes flipped = whole;
        const size_t at = below(head);
        flipped[at] ^= static_cast<uint8_t>(1u << below(8));
        CHECK(!decodes(kernel, flipped, back, itemsize), "%s: a flipped bit in byte %zu is refused", kernel.name, at);
        Bytes cut(whole.begin(), whole.end() - static_cast<std::ptrdiff_t>(1 + below(whole.size())));
        CHECK(!decodes(kernel, cut, back, itemsize), "%s: a payload cut to %zu bytes is refused", kernel.name,
              cut.size());
        Bytes longer = whole;
        longer.resize(whole.size() + 1 + below(64));
        CHECK(!decodes(kernel, longer, back, itemsize), "%s: %zu bytes too many are refused", kernel.name,
              longer.size() - whole.size());
        Bytes noise(whole.size());
        for (uint8_t& byte : noise) byte = static_cast<uint8_t>(generator());
        CHECK(!decodes(kernel, noise, back, itemsize), "%s: random bytes are refused", kernel.name);
    }
}

// A source whose number of non-zeros differs from the count is refused; the payload is never overrun.
void check_changed(const CsrKernel& kernel, size_t itemsize) {
    for (int round = 0; round < 200; ++round) {
        const size_t count = 1 + below(10'000);
        const Bytes source = random_elements(generator, count, itemsize, below(101));
        const uint64_t nonzeros = csr_count(kernel, source.data(), count, itemsize);
        const uint64_t other = below(count + 1);
        if (other == nonzeros) continue;
        Bytes payload(static_cast<size_t>(fastio::csr_nbytes(count, itemsize, other)));
        bool refused = false;
        try {
            csr_encode(kernel, source.data(), count, itemsize, payload.data(), payload.size());
        } catch (const fastio::Refused&) {
            refused = true;
        }
        CHECK(refused, "%s: %zu non-zeros in a payload for %zu are refused", kernel.name, static_cast<size_t>(nonzeros),
              static_cast<size_t>(other));
    }
}

void check_limits() {
    for (const uint64_t itemsize : {0, 1, 3, 16}) {
        bool refused = false;
        try {
            fastio::csr_nbytes(1, itemsize, 0);
        } catch (const fastio::Refused&) {
            refused = true;
        }
        CHECK(refused, "an itemsize of %zu is refused", static_cast<size_t>(itemsize));
    }
    bool refused = false;
    try {
        fastio::csr_nbytes(fastio::CSR_MAX_ELEMENTS + 1, 4, 0);
    } catch (const fastio::Refused&) {
        refused = true;
    }
    CHECK(refused, "more elements than a pointer can count are refused");
}

}  // namespace

int main() {
    for (const CsrKernel& kernel : fastio::csr_kernels()) {
        std::printf("%s\n", kernel.name);
        for (const size_t itemsize : {2, 4, 8}) {
            check_round_trips(kernel, itemsize);
            check_damage(kernel, itemsize);
            check_changed(kernel, itemsize);
        }
    }
    check_limits();
    std::printf("ok\n");
}
