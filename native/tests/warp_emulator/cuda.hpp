// The part of CUDA C++ that our kernels use, on the emulated device. Include it before a .cu file.
#pragma once

#include "tests/warp_emulator/device.hpp"

#define __device__
#define __global__
// Blocks run one after another, so one copy suffices. The section lets the device overwrite it before each block.
#define __shared__ static __attribute__((section("warp_shared")))

#define threadIdx warp_emulator::Device::thread()
#define blockIdx warp_emulator::Device::block()
#define blockDim warp_emulator::Device::block_size()
#define gridDim warp_emulator::Device::grid()

inline int __popc(unsigned word) { return __builtin_popcount(word); }

inline void __syncthreads() { warp_emulator::Device::running().synchronize(); }

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const auto votes = warp_emulator::Device::running().exchange("__ballot_sync", mask, predicate != 0);
    unsigned word = 0;
    for (unsigned lane = 0; lane < warp_emulator::LANES; ++lane) word |= static_cast<unsigned>(votes[lane]) << lane;
    return word;
}

// The value of the lane `delta` above; its own in the last `delta` lanes. The lane must be in the mask.
inline unsigned __shfl_down_sync(unsigned mask, unsigned value, unsigned delta) {
    const auto values = warp_emulator::Device::running().exchange("__shfl_down_sync", mask, value);
    const unsigned source = threadIdx.x % warp_emulator::LANES + delta;
    if (source >= warp_emulator::LANES) return value;
    CHECK((mask >> source) & 1u, "__shfl_down_sync from lane %u, which the mask %08x lacks", source, mask);
    return static_cast<unsigned>(values[source]);
}
