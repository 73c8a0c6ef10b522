// The LSTM cell as one operator, which torch calls for all devices of this kind. The CPU has no kernel of it.

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "backend/tensors.hpp"

namespace simulated {

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;  // without one, or with an undefined one

bool is_given(const MaybeTensor& tensor) { return tensor && tensor->defined(); }

Tensor with_bias(const Tensor& gates, const MaybeTensor& bias) { return is_given(bias) ? gates + *bias : gates; }

// Returns the hidden state, the cell state, and the activated gates for the backward pass.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cell,
                                             const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
    const auto gates = (with_bias(hidden_gates, hidden_bias) + with_bias(input_gates, input_bias)).chunk(4, 1);
    const Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), update = gates[2].tanh();
    const Tensor out = gates[3].sigmoid();
    const Tensor next = forget * cell + in * update;
    return {out * next.tanh(), next, at::cat({in, forget, update, out}, 1)};
}

Tensor or_zeros(const MaybeTensor& gradient, const Tensor& like) {
    return is_given(gradient) ? *gradient : at::zeros_like(like);
}

// Returns the gradients of the gates, of the cell state and of the bias.
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& of_hidden, const MaybeTensor& of_next,
                                                      const Tensor& cell, const Tensor& next, const Tensor& activated,
                                                      bool has_bias) {
    if (!is_given(of_hidden) && !is_given(of_next)) return {};
    const auto gates = activated.chunk(4, 1);
    const Tensor &in = gates[0], &forget = gates[1], &update = gates[2], &out = gates[3];
    const Tensor hidden_gradient = or_zeros(of_hidden, next), squashed = next.tanh();
    const Tensor gradient = hidden_gradient * out * (1 - squashed * squashed) + or_zeros(of_next, next);
    const Tensor of_gates =
        at::cat({gradient * update * in * (1 - in), gradient * cell * forget * (1 - forget),
                 gradient * in * (1 - update * update), hidden_gradient * squashed * out * (1 - out)},
                1);
    return {of_gates, gradient * forget, has_bias ? of_gates.sum(0) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
    library.impl("_thnn_fused_lstm_cell", lstm_cell);
    library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
}

}  // namespace

}  // namespace simulated
