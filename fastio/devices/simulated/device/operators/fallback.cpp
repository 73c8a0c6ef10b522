// Operators: the CPU's kernels, run by the stream's thread on the device's memory.
//
// An operator is asynchronous if running it on meta tensors tells what its outputs are: their memory is allocated, the
// kernel is queued, and the call returns. Where that fails (an output's size depends on values, a result is no tensor,
// there is no meta kernel), the kernel is queued as well, and the call waits for it.

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "backend/tensors.hpp"
#include "execution/streams.hpp"
#include "operators/inference.hpp"

namespace simulated {

namespace {

using torch::jit::Stack;

/// Runs the operator's CPU kernel. On the stream's thread, with as many threads as the issuing thread has.
void call_on_cpu(const c10::OperatorHandle& op, Stack& stack, int threads) {
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
    const Stack kept = stack;  // torch pushes references to several out= tensors after it dropped the arguments
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(stack);
}

/// Queues the operator's kernel; `finish` receives its results on the stream's thread. With `waits`, until it has
/// ended.
void issue_kernel(const c10::OperatorHandle& op, Arguments& arguments, std::function<void(Stack&)> finish, bool waits) {
    Work work;
    work.name = op.schema().name();
    work.engine = Engine::compute;
    for (const Range& range : arguments.ranges) work.nbytes += static_cast<int64_t>(range.nbytes);
    auto failure = std::make_shared<std::exception_ptr>();
    work.run = [op, waits, failure, stack = arguments.cpu, finish = std::move(finish),
                threads = at::get_num_threads()]() mutable {
        try {
            call_on_cpu(op, stack, threads);
            finish(stack);
        } catch (...) {
            if (!waits) throw;
            *failure = std::current_exception();
        }
    };
    Stream& stream = current_stream(arguments.device);
    {
        Lock lock(machine().mutex);
        issue(lock, stream, std::move(work), arguments.ranges);
        if (!waits) return;
        wait_for_stream(lock, stream, op.schema().name().c_str());
        check(op.schema().name().c_str());
    }
    if (*failure) std::rethrow_exception(*failure);
}

void copy_result(const at::Tensor& output, const at::Tensor& result) {
    // A kernel may leave out a result that it has no use for (batch_norm's saved mean in evaluation).
    if (!output.defined() || !result.defined() || result.numel() == 0) return;
    TORCH_CHECK(output.sizes() == result.sizes(), "the kernel's result has the sizes ", result.sizes(),
                "; those of the meta kernel were ", output.sizes());
    output.copy_(result);
}

/// What the operator returns, if the kernel is still to run: its arguments, views of them, and new memory.
struct Outputs {
    Stack returned;
    std::vector<std::pair<size_t, std::vector<at::Tensor>>> fresh;  // by the result's number, as the kernel sees them
};

at::Tensor allocate_output(const at::Tensor& meta, Arguments& arguments, std::vector<at::Tensor>& fresh) {
    if (!meta.defined()) {
        fresh.emplace_back();
        return {};
    }
    at::Tensor output = empty_on(arguments.device, meta.sizes(), meta.strides(), meta.scalar_type());
    add_ranges(arguments.ranges, output, true);
    fresh.push_back(on_device_thread(output));
    return output;
}

Outputs prepare(const c10::OperatorHandle& op, const Stack& inferred, Arguments& arguments) {
    Outputs outputs;
    for (size_t number = 0; number < inferred.size(); ++number) {
        const c10::IValue& meta = inferred[number];
        const auto* alias = op.schema().returns()[number].alias_info();
        if (alias) {
            const size_t position = aliased_argument(op.schema(), *alias);
            const c10::IValue& argument = arguments.original[position];
            if (alias->isWrite() || !argument.isTensor())
                outputs.returned.push_back(argument);
            else
                outputs.returned.emplace_back(view_on(argument.toTensor(), meta.toTensor().sizes(),
                                                      meta.toTensor().strides(), meta.toTensor().storage_offset(),
                                                      meta.toTensor().scalar_type()));
            continue;
        }
        std::vector<at::Tensor> fresh;
        if (meta.isTensor()) {
            outputs.returned.emplace_back(allocate_output(meta.toTensor(), arguments, fresh));
        } else {
            c10::List<at::Tensor> list;
            for (const at::Tensor& each : meta.toTensorVector())
                list.push_back(allocate_output(each, arguments, fresh));
            outputs.returned.emplace_back(std::move(list));
        }
        outputs.fresh.emplace_back(number, std::move(fresh));
    }
    return outputs;
}

bool is_view(const c10::OperatorHandle& op) {
    for (const auto& result : op.schema().returns())
        if (result.alias_info() && !result.alias_info()->isWrite()) return true;
    return false;
}

Stack run_asynchronously(const c10::OperatorHandle& op, const Stack& inferred, Arguments& arguments) {
    Outputs outputs = prepare(op, inferred, arguments);
    if (is_view(op)) return outputs.returned;
    auto finish = [fresh = std::move(outputs.fresh)](Stack& results) {
        for (const auto& [number, tensors] : fresh) {
            if (results[number].isTensor()) {
                copy_result(tensors[0], results[number].toTensor());
                continue;
            }
            const auto list = results[number].toTensorVector();
            for (size_t each = 0; each < list.size(); ++each) copy_result(tensors[each], list[each]);
        }
    };
    issue_kernel(op, arguments, std::move(finish), false);
    return outputs.returned;
}

at::Tensor to_device(const at::Tensor& result, int device) {
    if (!result.defined()) return result;
    at::Tensor output = empty_on(device, result.sizes(), result.strides(), result.scalar_type());
    output.copy_(result);
    return output;
}

Stack run_synchronously(const c10::OperatorHandle& op, Arguments& arguments) {
    arguments.detach_outputs();
    auto results = std::make_shared<Stack>();
    issue_kernel(op, arguments, [results](Stack& stack) { *results = std::move(stack); }, true);
    arguments.fill_outputs();
    Stack returned;
    for (size_t number = 0; number < results->size(); ++number) {
        const c10::IValue& result = (*results)[number];
        const auto* alias = op.schema().returns()[number].alias_info();
        if (alias && alias->isWrite()) {
            returned.push_back(arguments.original[aliased_argument(op.schema(), *alias)]);
        } else if (result.isTensor()) {
            returned.emplace_back(to_device(result.toTensor(), arguments.device));
        } else if (result.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor& each : result.toTensorVector()) list.push_back(to_device(each, arguments.device));
            returned.emplace_back(std::move(list));
        } else {
            returned.push_back(result);
        }
    }
    return returned;
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
    Arguments arguments(op.schema(), torch::jit::pop(*stack, op.schema().arguments().size()));
    const c10::DeviceGuard guard({kDeviceType, static_cast<c10::DeviceIndex>(arguments.device)});
    const auto inferred = infer(op, arguments);
    Stack results = inferred ? run_asynchronously(op, *inferred, arguments) : run_synchronously(op, arguments);
    for (c10::IValue& result : results) stack->push_back(std::move(result));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Operators with a kernel for the CPU that torch would otherwise compose of others, with other bits, or not at all, or
// whose out= kernel makes its output larger for a while.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
    for (const char* name :
         {"_stack", "addr", "convolution", "convolution_backward", "mish_backward", "mse_loss",
          "native_channel_shuffle", "native_group_norm", "native_layer_norm", "silu_backward", "smooth_l1_loss"})
        library.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

}  // namespace simulated
