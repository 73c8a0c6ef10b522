// Runs the GPU source on the host, with 32 threads as the lanes of one warp after another. Its payloads must equal
// those of the CPU kernels. The tests marked `gpu` cover what a real GPU adds.

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "codec/csr.hpp"
#include "support/errors.hpp"
#include "tests/support/check.hpp"

namespace {

struct Dimension {
    unsigned x;
};
constexpr unsigned WARPS = 8;  // in a block
thread_local Dimension blockIdx{};
thread_local Dimension threadIdx{};
constexpr Dimension blockDim{32 * WARPS};

// All 32 lanes contribute a bit and wait; the last one ends the round, and all return the word.
class Ballot {
  public:
    unsigned vote(unsigned lane, bool bit) {
        std::unique_lock<std::mutex> lock(mutex_);
        const unsigned round = round_;
        if (bit) word_ |= 1u << lane;
        if (++voters_ == 32) {
            result_ = word_;
            word_ = voters_ = 0;
            ++round_;
            changed_.notify_all();
        }
        changed_.wait(lock, [&] { return round_ != round; });
        return result_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    unsigned word_ = 0, voters_ = 0, round_ = 0, result_ = 0;
} ballot;

unsigned __ballot_sync(unsigned, bool bit) { return ballot.vote(threadIdx.x % 32, bit); }
unsigned __popc(unsigned word) { return static_cast<unsigned>(__builtin_popcount(word)); }

#define __device__
#define __global__
#include "codec/csr.cu"

// Launches one block more than the rows need, as a real launch may.
void launch(uint64_t rows, const std::function<void()>& kernel) {
    std::vector<std::thread> lanes;
    for (unsigned lane = 0; lane < 32; ++lane) {
        lanes.emplace_back([&, lane] {
            for (unsigned warp = 0; warp < (rows / WARPS + 1) * WARPS; ++warp) {
                blockIdx.x = warp / WARPS;
                threadIdx.x = warp % WARPS * 32 + lane;
                kernel();
            }
        });
    }
    for (std::thread& lane : lanes) lane.join();
}

std::mt19937_64 generator(20260802);

size_t below(size_t limit) { return generator() % limit; }

template <typename Element>
struct Kernels {
    void (*find)(const Element*, u64, u32*, long long*);
    void (*pack)(const Element*, u64, const u32*, const long long*, unsigned char*);
    void (*unpack)(const unsigned char*, u64, u64, Element*, int*);
};

template <typename Element>
bool unpacks(const Kernels<Element>& kernels, const std::vector<uint8_t>& payload, std::vector<Element>& back) {
    const uint64_t rows = (back.size() + 127) / 128;
    const uint64_t nonzeros = (payload.size() - fastio::csr_nbytes(back.size(), sizeof(Element), 0)) / sizeof(Element);
    int damaged = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {  // unpacking needs no ballot, so lanes run one by one
        for (uint64_t row = 0; row < rows; ++row) {
            blockIdx.x = static_cast<unsigned>(row / WARPS);
            threadIdx.x = static_cast<unsigned>(row % WARPS * 32 + lane);
            kernels.unpack(payload.data(), nonzeros, back.size(), back.data(), &damaged);
        }
    }
    return damaged == 0;
}

template <typename Element>
void check(const Kernels<Element>& kernels) {
    const fastio::CsrKernel& host = fastio::csr_kernels().front();
    for (int round = 0; round < 40; ++round) {
        const size_t count = 1 + below(round < 30 ? 600 : 3000);
        const size_t percent = below(101);
        std::vector<Element> source(count, 0);
        for (Element& element : source) {
            if (below(100) < percent) element = static_cast<Element>(generator() >> below(64));
        }
        const uint64_t rows = (count + 127) / 128;
        std::vector<u32> bits(4 * rows);
        std::vector<long long> ends(rows);
        launch(rows, [&] { kernels.find(source.data(), count, bits.data(), ends.data()); });
        for (uint64_t row = 1; row < rows; ++row) ends[row] += ends[row - 1];
        const auto nonzeros = static_cast<uint64_t>(ends.back());
        CHECK(nonzeros == csr_count(host, source.data(), count, sizeof(Element)),
              "%zu elements: the counts of GPU and CPU are equal", count);
        const size_t nbytes = fastio::csr_nbytes(count, sizeof(Element), nonzeros);
        std::vector<uint8_t> payload(nbytes, 0xA5), expected(nbytes, 0x5A);
        launch(rows, [&] { kernels.pack(source.data(), count, bits.data(), ends.data(), payload.data()); });
        csr_encode(host, source.data(), count, sizeof(Element), expected.data(), nbytes);
        CHECK(payload == expected, "%zu elements of %zu bytes: the payloads of GPU and CPU are equal", count,
              sizeof(Element));

        std::vector<Element> back(count, static_cast<Element>(-1));
        CHECK(unpacks(kernels, payload, back), "%zu elements: the payload is accepted", count);
        CHECK(back == source, "%zu elements of %zu bytes: decodes to the source", count, sizeof(Element));
        for (int damage = 0; damage < 10; ++damage) {
            std::vector<uint8_t> flipped = payload;
            flipped[below(fastio::csr_nbytes(count, sizeof(Element), 0))] ^= static_cast<uint8_t>(1u << below(8));
            CHECK(!unpacks(kernels, flipped, back), "%zu elements: damage is reported", count);
        }
    }
}

}  // namespace

int main() {
    check<unsigned short>({csr_find_2, csr_pack_2, csr_unpack_2});
    check<u32>({csr_find_4, csr_pack_4, csr_unpack_4});
    check<u64>({csr_find_8, csr_pack_8, csr_unpack_8});
    std::printf("ok\n");
}
