// The kernels as a shared library, on the emulated device of the native tests.
#include "tests/warp_emulator/cuda.hpp"
// The sources need what cuda.hpp defines.
#include "checksum/crc32.cu"
#include "codec/csr.cu"

// All parameters of a kernel are pointers or 64-bit numbers; one with fewer than five ignores the others.
extern "C" void launch(void (*kernel)(u64, u64, u64, u64, u64), unsigned blocks, unsigned threads, const u64* values) {
    static warp_emulator::Device device(20261126);
    device.launch(blocks, threads, [&] { kernel(values[0], values[1], values[2], values[3], values[4]); });
}
