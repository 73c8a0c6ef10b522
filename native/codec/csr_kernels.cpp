#include "codec/csr.hpp"
#include "codec/csr_scalar.hpp"

#if defined(__x86_64__)
#include "codec/csr_avx2.hpp"
#include "codec/csr_avx512.hpp"
#include "support/processor.hpp"
#endif

namespace fastio {

using namespace detail;

namespace {

std::vector<CsrKernel> find_kernels() {
    std::vector<CsrKernel> kernels;
#if defined(__x86_64__)
    const Processor& has = processor();
    const bool avx2 = has.avx2 && has.popcnt;
    const bool avx512f = avx2 && has.avx512f;
    const CsrRows two = {avx2_count<Avx2x2>, avx2_pack<Avx2x2>, avx2_unpack<Avx2x2>};
    const CsrRows four = {avx512f_count<Avx512x4>, avx512f_pack<Avx512x4>, avx512f_unpack<Avx512x4>};
    const CsrRows eight = {avx512f_count<Avx512x8>, avx512f_pack<Avx512x8>, avx512f_unpack<Avx512x8>};
    if (avx512f && has.avx512bw && has.avx512vbmi2) {
        const CsrRows words = {vbmi2_count<Avx512x2>, vbmi2_pack<Avx512x2>, vbmi2_unpack<Avx512x2>};
        kernels.push_back({"avx512-vbmi2", {words, four, eight}, popcnt_tally});
    }
    if (avx512f) kernels.push_back({"avx512f", {two, four, eight}, popcnt_tally});
    if (avx2) {
        kernels.push_back({"avx2",
                           {two,
                            {avx2_count<Avx2x4>, avx2_pack<Avx2x4>, avx2_unpack<Avx2x4>},
                            {avx2_count<Avx2x8>, avx2_pack<Avx2x8>, avx2_unpack<Avx2x8>}},
                           popcnt_tally});
    }
#endif
    kernels.push_back({"scalar",
                       {{scalar_count<uint16_t>, scalar_pack<uint16_t>, scalar_unpack<uint16_t>},
                        {scalar_count<uint32_t>, scalar_pack<uint32_t>, scalar_unpack<uint32_t>},
                        {scalar_count<uint64_t>, scalar_pack<uint64_t>, scalar_unpack<uint64_t>}},
                       scalar_tally});
    return kernels;
}

}  // namespace

const std::vector<CsrKernel>& csr_kernels() {
    static const std::vector<CsrKernel> kernels = find_kernels();
    return kernels;
}

}  // namespace fastio
