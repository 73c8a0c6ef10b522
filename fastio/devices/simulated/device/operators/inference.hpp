#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "operators/arguments.hpp"

namespace simulated {

/// The operator's results on meta tensors; nullopt if those cannot be known before it runs. Resizes `out=` tensors.
///
/// What meta kernels said is kept: many are written in Python and take 0.1 ms.
std::optional<torch::jit::Stack> infer(const c10::OperatorHandle& op, Arguments& arguments);

}  // namespace simulated
