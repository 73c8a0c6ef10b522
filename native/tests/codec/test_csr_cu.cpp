// Runs the GPU source csr.cu on the emulated device. Its payloads must equal those of the CPU codec bit by bit, and it
// must accept and refuse what the CPU codec does, without an access out of bounds. The tests marked `gpu` cover what a
// real GPU adds.
//
// Another seed and more rounds: test_csr_cu 7 10000

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codec/csr.hpp"
#include "support/errors.hpp"
#include "tests/codec/random_elements.hpp"
#include "tests/support/check.hpp"
#include "tests/warp_emulator/cuda.hpp"
#include "tests/warp_emulator/guarded.hpp"

namespace {

#include "codec/csr.cu"

using warp_emulator::Against;
using warp_emulator::Guarded;
using Bytes = std::vector<uint8_t>;

std::mt19937_64 generator;
unsigned cases = 0, accepted = 0;

size_t below(size_t limit) { return generator() % limit; }

Against any_end() { return below(2) == 0 ? Against::BEGIN : Against::END; }

uint64_t rows_of(size_t count) { return (count + 127) / 128; }

// At least one warp for each row, in blocks of 1 to 8 warps, and at times a block more.
template <typename Kernel>
void launch(warp_emulator::Device& device, uint64_t rows, const Kernel& kernel) {
    const unsigned warps = 1 + static_cast<unsigned>(below(8));
    device.launch(static_cast<unsigned>((rows + warps - 1) / warps + below(2)), warps * 32, kernel);
}

// A payload in memory as the device has it: aligned to 8 bytes.
struct Payload : Guarded {
    explicit Payload(size_t nbytes) : Guarded(nbytes, any_end(), 0, 8) {}
    explicit Payload(const Bytes& bytes) : Payload(bytes.size()) { std::copy(bytes.begin(), bytes.end(), data()); }
};

template <typename Element>
struct Codec {
    void (*find)(const Element*, u64, u32*, long long*);
    void (*pack)(const Element*, u64, const u32*, const long long*, unsigned char*);
    void (*unpack)(const unsigned char*, u64, u64, Element*, int*);
    static constexpr size_t WIDTH = sizeof(Element);
    warp_emulator::Device device{generator()};

    // What pack() of fastio/offload/codecs/csr_cuda.py does. `change` may change the source between the two kernels.
    template <typename Change>
    Bytes encode(const Guarded& source, size_t count, const Change& change) {
        const uint64_t rows = rows_of(count);
        Guarded bits(rows * 16, any_end()), ends(rows * 8, any_end());
        launch(device, rows, [&] { find(source.as<Element>(), count, bits.as<u32>(), ends.as<long long>()); });
        for (uint64_t row = 1; row < rows; ++row) ends.as<long long>()[row] += ends.as<long long>()[row - 1];
        const auto nonzeros = static_cast<uint64_t>(rows == 0 ? 0 : ends.as<long long>()[rows - 1]);
        Payload payload(fastio::csr_nbytes(count, WIDTH, nonzeros));
        change();
        launch(device, rows,
               [&] { pack(source.as<Element>(), count, bits.as<u32>(), ends.as<long long>(), payload.data()); });
        return Bytes(payload.data(), payload.data() + payload.size());
    }

    // What unpack() of csr.py does.
    bool decode(const Bytes& bytes, const Guarded& back, size_t count) {
        const uint64_t rows = rows_of(count), head = fastio::csr_nbytes(count, WIDTH, 0);
        if (bytes.size() < head || (bytes.size() - head) % WIDTH != 0) return false;
        if (rows == 0) return bytes.size() == head;
        const Payload payload(bytes);
        Guarded damaged(4, any_end());
        *damaged.as<int>() = 0;
        launch(device, rows, [&] {
            unpack(payload.data(), (bytes.size() - head) / WIDTH, count, back.as<Element>(), damaged.as<int>());
        });
        return *damaged.as<int>() == 0;
    }
};

const fastio::CsrKernel& host() { return fastio::csr_kernels().front(); }

Bytes encode_on_host(const Bytes& source, size_t width) {
    const size_t count = source.size() / width;
    Bytes payload(fastio::csr_nbytes(count, width, csr_count(host(), source.data(), count, width)));
    csr_encode(host(), source.data(), count, width, payload.data(), payload.size());
    return payload;
}

bool decode_on_host(const Bytes& payload, Bytes& back, size_t width) {
    try {
        csr_decode(host(), payload.data(), payload.size(), back.data(), back.size() / width, width);
        return true;
    } catch (const fastio::Refused&) {
        return false;
    }
}

// A payload as damage leaves it; some of these are good payloads of other elements.
Bytes damaged(Bytes payload, size_t count, size_t width) {
    const size_t head = fastio::csr_nbytes(count, width, 0);
    switch (below(9)) {
        case 0:
        case 1:  // a bit of the rows, pointers or padding
            if (head != 0) payload[below(head)] ^= static_cast<uint8_t>(1u << below(8));
            break;
        case 2:  // a bit anywhere
            if (!payload.empty()) payload[below(payload.size())] ^= static_cast<uint8_t>(1u << below(8));
            break;
        case 3:
            payload.resize(below(payload.size() + 1));
            break;
        case 4:
            payload.resize(payload.size() + 1 + below(64));
            break;
        case 5:
            for (uint8_t& byte : payload) byte = static_cast<uint8_t>(generator());
            break;
        case 6:  // two bits of the rows change places: the counts stay right if both lie in one row
            if (head != 0) {
                const size_t a = below(head), b = std::min(head - 1, a + below(4));
                std::swap(payload[a], payload[b]);
            }
            break;
        case 7:  // every pointer is too high by one, and there is a value more
            for (uint64_t row = 0; row < rows_of(count); ++row) {
                ++reinterpret_cast<uint32_t*>(payload.data() + rows_of(count) * 16)[row];
            }
            payload.resize(payload.size() + width);
            break;
        default:  // zeros or ones over a part
            if (!payload.empty()) {
                const size_t a = below(payload.size()), b = std::min(payload.size(), a + 1 + below(40));
                std::fill(payload.begin() + static_cast<ptrdiff_t>(a), payload.begin() + static_cast<ptrdiff_t>(b),
                          below(2) == 0 ? 0 : 0xFF);
            }
    }
    return payload;
}

template <typename Element>
void check_one(Codec<Element>& codec, size_t count) {
    constexpr size_t WIDTH = sizeof(Element);
    const Bytes elements = random_elements(generator, count, WIDTH, below(101));
    const Guarded source(elements.size(), any_end()), back(elements.size(), any_end());
    std::copy(elements.begin(), elements.end(), source.data());
    const Bytes expected = encode_on_host(elements, WIDTH);
    const Bytes payload = codec.encode(source, count, [] {});
    CHECK(payload == expected, "%zu elements of %zu bytes: the payloads of GPU and CPU are equal", count, WIDTH);
    CHECK(codec.decode(payload, back, count), "%zu elements of %zu bytes: the payload is accepted", count, WIDTH);
    CHECK(std::equal(elements.begin(), elements.end(), back.data()), "%zu elements of %zu bytes: decodes to the source",
          count, WIDTH);
    ++cases;

    for (int round = 0; round < 4; ++round, ++cases) {
        const Bytes bytes = damaged(payload, count, WIDTH);
        Bytes on_host(elements.size());
        const bool good = decode_on_host(bytes, on_host, WIDTH);
        CHECK(codec.decode(bytes, back, count) == good, "%zu elements of %zu bytes: the CPU %s this payload", count,
              WIDTH, good ? "accepts" : "refuses");
        CHECK(!good || std::equal(on_host.begin(), on_host.end(), back.data()), "%zu elements: the same elements",
              count);
        accepted += good;
    }

    // The source changes after its bits were found: the new values at the old places, within bounds.
    const Bytes other = random_elements(generator, count, WIDTH, below(101));
    const Bytes torn = codec.encode(source, count, [&] { std::copy(other.begin(), other.end(), source.data()); });
    CHECK(torn.size() == expected.size() && codec.decode(torn, back, count), "%zu elements: a changed source", count);
    for (size_t i = 0; i < count; ++i) {
        const bool kept = (payload[i / 8] >> i % 8) & 1u;
        CHECK(back.as<Element>()[i] == (kept ? source.as<Element>()[i] : 0), "element %zu of a changed source", i);
    }
    ++cases;
}

template <typename Element>
void check(Codec<Element> codec, int rounds) {
    for (const size_t count : {0, 1, 31, 32, 33, 64, 96, 127, 128, 129, 255, 256, 257, 384, 1024}) {
        check_one(codec, count);
    }
    for (int round = 0; round < rounds; ++round) check_one(codec, below(round % 8 == 0 ? 4000 : 600));
}

}  // namespace

int main(int argc, char** argv) {
    generator.seed(argc > 1 ? std::stoull(argv[1]) : 20260802);
    const int rounds = argc > 2 ? std::stoi(argv[2]) : 400;
    check<unsigned short>({csr_find_2, csr_pack_2, csr_unpack_2}, rounds);
    check<u32>({csr_find_4, csr_pack_4, csr_unpack_4}, rounds);
    check<u64>({csr_find_8, csr_pack_8, csr_unpack_8}, rounds);
    std::printf("ok: %u cases; %u damaged payloads were good ones of other elements\n", cases, accepted);
}
