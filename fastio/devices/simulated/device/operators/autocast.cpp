// torch.autocast("simulated"): the operators that torch casts on every accelerator.

#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace simulated {

namespace {

#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SINGLE_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SINGLE_PRECISION_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
    AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
    AT_FORALL_FP32(SINGLE_PRECISION)
    AT_FORALL_FP32_SET_OPT_DTYPE(SINGLE_PRECISION_DTYPE)
    AT_FORALL_PROMOTE(PROMOTE)
}

}  // namespace

}  // namespace simulated
