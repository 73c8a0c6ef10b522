// Tests the emulated device itself: votes, shuffles, barriers and shared memory give CUDA's results, and each mistake
// that it is there to find ends the program.

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <set>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/warp_emulator/cuda.hpp"
#include "tests/warp_emulator/guarded.hpp"

namespace {

using warp_emulator::Against;
using warp_emulator::Device;
using warp_emulator::Guarded;

constexpr unsigned ALL = 0xFFFFFFFFu;

unsigned number() { return blockIdx.x * blockDim.x + threadIdx.x; }

void check_every_thread_runs_once() {
    std::set<std::vector<unsigned>> orders;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        std::vector<unsigned> order;
        Device(seed).launch(3, 64, [&] {
            CHECK(gridDim.x == 3 && blockDim.x == 64, "the sizes");
            order.push_back(number());
        });
        CHECK(std::set<unsigned>(order.begin(), order.end()).size() == 192 && order.size() == 192, "192 threads");
        orders.insert(order);
    }
    CHECK(orders.size() == 20, "each seed has an order of its own");
}

void check_collectives() {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        Device(seed).launch(2, 96, [] {
            const unsigned lane = threadIdx.x % 32;
            for (unsigned round = 0; round < 5; ++round) {
                CHECK(
                    __ballot_sync(ALL, lane % 5 == round) ==
                        [&] {
                            unsigned word = 0;
                            for (unsigned other = round; other < 32; other += 5) word |= 1u << other;
                            return word;
                        }(),
                    "a vote");
                const unsigned delta = 1u << round;
                const unsigned got = __shfl_down_sync(ALL, number() * 7, delta);
                CHECK(got == (lane + delta < 32 ? number() + delta : number()) * 7, "a shuffle");
            }
            const unsigned mask = lane < 8 ? 0xFFu : 0xFFFFFF00u;  // two groups of lanes on ways of their own
            const unsigned votes = lane < 8 ? __ballot_sync(mask, 1) : __ballot_sync(mask, lane % 2 == 0);
            CHECK(votes == (lane < 8 ? 0xFFu : 0x55555500u), "a vote of a group: %08x", votes);
        });
    }
}

void reverse(unsigned* out, bool synchronized) {
    __shared__ unsigned shared[64];
    shared[threadIdx.x] = number();
    if (synchronized) __syncthreads();
    out[number()] = shared[63 - threadIdx.x];
}

void check_shared_memory() {
    unsigned wrong = 0;
    for (bool synchronized : {true, false}) {
        for (uint64_t seed = 0; seed < 20; ++seed) {
            std::vector<unsigned> out(256);
            Device(seed).launch(4, 64, [&] { reverse(out.data(), synchronized); });
            for (unsigned i = 0; i < 256; ++i) {
                const bool good = out[i] == i / 64 * 64 + 63 - i % 64;
                CHECK(good || !synchronized, "element %u is %u", i, out[i]);
                wrong += !good;
            }
        }
    }
    CHECK(wrong > 1000, "without a barrier shared memory is seldom right: %u", wrong);
}

// Runs `mistake` in a child process, which must not end well.
void dies(const char* name, const std::function<void()>& mistake) {
    const pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        CHECK(std::freopen("/dev/null", "w", stderr) != nullptr, "freopen");
        mistake();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "%s was not found", name);
}

void check_mistakes() {
    const auto run = [](const std::function<void()>& kernel) { Device(1).launch(1, 64, kernel); };
    dies("a vote that half of the lanes skip", [&] {
        run([] {
            if (threadIdx.x % 2 == 0) __ballot_sync(ALL, 1);
        });
    });
    dies("two votes with different masks", [&] { run([] { __ballot_sync(threadIdx.x == 3 ? ALL : ALL >> 1, 1); }); });
    dies("a vote without the caller", [&] { run([] { __ballot_sync(0xFFFF, 1); }); });
    dies("a barrier that a warp skips", [&] {
        run([] {
            if (threadIdx.x < 32) __syncthreads();
        });
    });
    dies("a barrier against a vote",
         [&] { run([] { threadIdx.x < 3 ? __syncthreads() : static_cast<void>(__ballot_sync(ALL, 1)); }); });
    dies("a shuffle from outside the mask", [&] {
        run([] {
            if (threadIdx.x % 32 < 16) __shfl_down_sync(0xFFFF, 1, 1);
        });
    });
    for (const Against against : {Against::BEGIN, Against::END}) {
        for (const ptrdiff_t at : {-4096, -1, 100, 4195}) {
            dies("a write out of bounds", [&] {
                Guarded memory(100, against, 3, 8);
                Device(1).launch(1, 32, [&] {
                    if (threadIdx.x == 7) *(memory.data() + at) = 1;
                });
            });
        }
        for (const ptrdiff_t at : {-1, 100}) {
            if (at == -1 ? against == Against::END : against == Against::BEGIN) continue;
            dies("a read of the inaccessible page", [&] {
                Guarded memory(100, against);
                volatile uint8_t seen = 0;
                Device(1).launch(1, 32, [&] {
                    if (threadIdx.x == 7) seen = *(memory.data() + at);
                });
            });
        }
    }
}

}  // namespace

int main() {
    check_every_thread_runs_once();
    check_collectives();
    check_shared_memory();
    check_mistakes();
    std::printf("ok\n");
}
