// Dropout by operators that take a generator: the CPU's kernel would draw from the CPU's own generator.

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "backend/tensors.hpp"

namespace simulated {

namespace {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
    at::Tensor mask = at::empty_like(input, c10::TensorOptions(c10::kBool));
    if (!train.value_or(true) || p == 0) return {input.clone(), mask.fill_(true)};
    mask.bernoulli_(1 - p);
    return {input.mul(mask).mul_(p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { library.impl("native_dropout", native_dropout); }

}  // namespace

}  // namespace simulated
