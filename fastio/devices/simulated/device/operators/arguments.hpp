#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include "backend/tensors.hpp"

namespace simulated {

/// An operator's arguments as given, for its CPU kernel, and on meta tensors.
///
/// Tensors on the CPU are taken by value, when the operator is issued. Each generator becomes one on the CPU with a
/// seed drawn now, so that a random operator is asynchronous and the same whenever it runs.
class Arguments {
  public:
    Arguments(const c10::FunctionSchema& schema, torch::jit::Stack given);

    /// The arguments on meta tensors.
    torch::jit::Stack meta() const;

    /// Gives the `out=` tensors the sizes that a meta kernel gave those in `inferred`. True if there were others.
    bool resize_outputs(const torch::jit::Stack& inferred);

    /// For a kernel whose results' sizes are not known: `out=` tensors are replaced by empty ones on the CPU,
    void detach_outputs();

    /// whose values then go to the device.
    void fill_outputs();

    int device = -1;
    torch::jit::Stack original;
    torch::jit::Stack cpu;
    std::vector<Range> ranges;

  private:
    void find_device();
    at::Tensor to_cpu(const at::Tensor& tensor, bool write);
    c10::IValue draw_generator(const c10::IValue& value) const;

    const c10::FunctionSchema& schema_;
    std::vector<std::pair<at::Tensor, at::Tensor>> converted_;  // tensors as given and for the CPU, each once
};

/// Calls `visit` for the tensors in a value: a tensor, or a list of tensors.
void visit_tensors(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

/// The position of the argument that a result is, or is a view of.
size_t aliased_argument(const c10::FunctionSchema& schema, const c10::AliasInfo& alias);

}  // namespace simulated
