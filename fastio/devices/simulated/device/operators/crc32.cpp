// A kernel that torch lacks: the CRC-32 of device memory, as zlib computes it.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <cstring>

namespace simulated {

namespace {

/// The CRC-32 of a CPU tensor's bytes, an int64 of shape (). The fallback runs it on the device.
at::Tensor crc32(const at::Tensor& bytes) {
    static const auto table = [] {
        std::array<std::array<uint32_t, 256>, 8> made{};
        for (uint32_t byte = 0; byte < 256; ++byte) {
            uint32_t value = byte;
            for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (0xEDB88320u & (0u - (value & 1u)));
            made[0][byte] = value;
        }
        for (size_t slice = 1; slice < made.size(); ++slice)
            for (size_t byte = 0; byte < 256; ++byte)
                made[slice][byte] = (made[slice - 1][byte] >> 8) ^ made[0][made[slice - 1][byte] & 0xFF];
        return made;
    }();
    const auto* at = static_cast<const unsigned char*>(bytes.data_ptr());
    const unsigned char* const end = at + bytes.nbytes();
    uint32_t value = 0xFFFFFFFFu;
    for (; end - at >= 8; at += 8) {  // slicing-by-8: Kounavis and Berry, 2005
        uint64_t word;
        std::memcpy(&word, at, 8);
        word ^= value;
        value = 0;
        for (int byte = 0; byte < 8; ++byte) value ^= table[7 - byte][word >> (8 * byte) & 0xFF];
    }
    for (; at < end; ++at) value = (value >> 8) ^ table[0][(value ^ *at) & 0xFF];
    at::Tensor result = at::empty({}, c10::TensorOptions(at::kLong));
    *static_cast<int64_t*>(result.data_ptr()) = value ^ 0xFFFFFFFFu;
    return result;
}

at::Tensor crc32_meta(const at::Tensor& bytes) { return at::empty({}, bytes.options().dtype(at::kLong)); }

TORCH_LIBRARY_FRAGMENT(simulated, library) { library.def("crc32(Tensor bytes) -> Tensor"); }
TORCH_LIBRARY_IMPL(simulated, CPU, library) { library.impl("crc32", crc32); }
TORCH_LIBRARY_IMPL(simulated, Meta, library) { library.impl("crc32", crc32_meta); }

}  // namespace

}  // namespace simulated
