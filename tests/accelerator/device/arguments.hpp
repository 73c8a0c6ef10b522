#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include "tensors.hpp"

namespace simulated {

/// An operator's arguments three times: as given, for its CPU kernel, and on meta tensors.
///
/// Tensors on the CPU are taken by value, when the operator is issued. Each generator becomes one on the CPU with a
/// seed drawn now, so that a random operator is asynchronous and the same whenever it runs.
class Arguments {
  public:
    Arguments(const c10::FunctionSchema& schema, torch::jit::Stack given);

    /// Gives the `out=` tensors the sizes that the meta kernel gave theirs.
    void resize_outputs();

    /// For a kernel whose results' sizes are not known: `out=` tensors are replaced by empty ones on the CPU,
    void detach_outputs();

    /// whose values then go to the device.
    void fill_outputs();

    int device = -1;
    torch::jit::Stack original;
    torch::jit::Stack cpu;
    torch::jit::Stack meta;
    std::vector<Range> ranges;

  private:
    struct Converted {
        at::Tensor original, cpu, meta;
    };

    void find_device();
    void add(const c10::Argument& argument, const c10::IValue& value);
    Converted convert(const at::Tensor& tensor, bool write);
    void add_generator(const c10::IValue& value);

    const c10::FunctionSchema& schema_;
    std::vector<Converted> converted_;  // each tensor once
};

/// The position of the argument that a result is, or is a view of.
size_t aliased_argument(const c10::FunctionSchema& schema, const c10::AliasInfo& alias);

}  // namespace simulated
