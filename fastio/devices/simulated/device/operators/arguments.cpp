#include "operators/arguments.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "backend/generators.hpp"
#include "execution/streams.hpp"

namespace simulated {

namespace {

bool is_generator(const c10::Argument& argument) {
    const c10::Type* type = argument.type().get();
    if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType().get();
    return type->kind() == c10::TypeKind::GeneratorType;
}

bool is_optional_tensor_list(const c10::IValue& value) {
    if (!value.isList()) return false;
    const auto type = value.toList().elementType();
    return type->kind() == c10::TypeKind::OptionalType &&
           type->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::TensorType;
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

/// The value with other tensors, and with another device in the place of each.
template <typename Convert>
c10::IValue map_tensors(const c10::IValue& value, c10::DeviceType device, Convert convert) {
    if (value.isTensor()) return convert(value.toTensor());
    if (value.isDevice()) return c10::Device(device);
    if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& each : value.toTensorVector()) list.push_back(convert(each));
        return list;
    }
    if (is_optional_tensor_list(value)) {
        c10::List<std::optional<at::Tensor>> list;
        for (const c10::IValue& each : value.toListRef())
            list.push_back(each.isTensor() ? std::optional(convert(each.toTensor())) : std::nullopt);
        return list;
    }
    return value;
}

}  // namespace

void visit_tensors(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
    if (value.isTensor()) return visit(value.toTensor());
    if (value.isTensorList())
        for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
    else if (is_optional_tensor_list(value))
        for (const c10::IValue& element : value.toListRef())
            if (element.isTensor()) visit(element.toTensor());
}

size_t aliased_argument(const c10::FunctionSchema& schema, const c10::AliasInfo& alias) {
    for (size_t position = 0; position < schema.arguments().size(); ++position) {
        const auto* of_argument = schema.arguments()[position].alias_info();
        if (of_argument && of_argument->beforeSets() == alias.beforeSets()) return position;
    }
    TORCH_CHECK(false, schema.name(), ": no argument has the alias of a result");
}

Arguments::Arguments(const c10::FunctionSchema& schema, torch::jit::Stack given)
    : original(std::move(given)), schema_(schema) {
    find_device();
    for (size_t position = 0; position < original.size(); ++position) {
        const c10::Argument& argument = schema.arguments()[position];
        const bool write = is_written(argument);
        cpu.push_back(is_generator(argument)
                          ? draw_generator(original[position])
                          : map_tensors(original[position], c10::DeviceType::CPU,
                                        [&](const at::Tensor& tensor) { return to_cpu(tensor, write); }));
    }
}

void Arguments::find_device() {
    for (const c10::IValue& value : original) {
        visit_tensors(value, [&](const at::Tensor& tensor) {
            if (!tensor.defined() || tensor.device().type() != kDeviceType) return;
            if (device < 0) device = tensor.device().index();
            TORCH_CHECK(tensor.device().index() == device, schema_.name(),
                        ": expected all tensors to be on the same device, but found simulated:", device, " and ",
                        tensor.device());
        });
        if (device < 0 && value.isDevice() && value.toDevice().has_index()) device = value.toDevice().index();
    }
    if (device < 0) device = current_device();
}

at::Tensor Arguments::to_cpu(const at::Tensor& tensor, bool write) {
    if (!tensor.defined()) return tensor;
    TORCH_CHECK(tensor.layout() == c10::kStrided, schema_.name(),
                ": the simulated accelerator has strided tensors only");
    const bool is_on_device = tensor.device().type() == kDeviceType;
    if (is_on_device) add_ranges(ranges, tensor, write);
    for (const auto& [given, converted] : converted_)
        if (given.is_same(tensor)) return converted;
    if (!is_on_device) {
        const bool is_index = schema_.name().find("index") != std::string::npos && !tensor.is_floating_point();
        TORCH_CHECK(tensor.is_cpu() && !write && (tensor.dim() == 0 || is_index), schema_.name(),
                    ": expected all tensors to be on the same device, but found simulated:", device, " and ",
                    tensor.device());
    }
    converted_.emplace_back(tensor, is_on_device ? on_device_thread(tensor) : tensor.clone());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
        converted_.back().second.unsafeGetTensorImpl()->set_wrapped_number(true);
    return converted_.back().second;
}

c10::IValue Arguments::draw_generator(const c10::IValue& value) const {
    at::Generator generator = default_generator(device);
    if (value.isGenerator() && value.toGenerator().defined()) generator = value.toGenerator();
    TORCH_CHECK(generator.device().type() == kDeviceType, schema_.name(),
                ": expected a generator of the simulated accelerator, but found one of ", generator.device());
    const std::lock_guard<std::mutex> lock(generator.mutex());
    return at::detail::createCPUGenerator(generator.get<at::CPUGeneratorImpl>()->random64());
}

torch::jit::Stack Arguments::meta() const {
    torch::jit::Stack stack;
    std::vector<std::pair<at::Tensor, at::Tensor>> converted;
    auto convert = [&](const at::Tensor& tensor) {
        // A number on the CPU stays one: it takes no part in type promotion.
        if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) return tensor;
        for (const auto& [given, made] : converted)
            if (given.is_same(tensor)) return made;
        return converted.emplace_back(tensor, to_meta(tensor)).second;
    };
    for (size_t position = 0; position < original.size(); ++position)
        stack.push_back(is_generator(schema_.arguments()[position])
                            ? c10::IValue()
                            : map_tensors(original[position], c10::DeviceType::Meta, convert));
    return stack;
}

bool Arguments::resize_outputs(const torch::jit::Stack& inferred) {
    bool resized = false;
    for (size_t position = 0; position < original.size(); ++position) {
        if (!is_written(schema_.arguments()[position]) || !original[position].isTensor()) continue;
        const at::Tensor& given = original[position].toTensor();
        const at::Tensor& wanted = inferred[position].toTensor();
        if (!given.defined() || given.sizes() == wanted.sizes()) continue;
        given.resize_(wanted.sizes());
        given.unsafeGetTensorImpl()->set_sizes_and_strides(wanted.sizes(), wanted.strides());
        add_ranges(ranges, given, true);
        cpu[position] = on_device_thread(given);
        resized = true;
    }
    return resized;
}

void Arguments::detach_outputs() {
    for (size_t position = 0; position < original.size(); ++position)
        if (schema_.arguments()[position].is_out() && original[position].isTensor())
            cpu[position] = at::empty({0}, c10::TensorOptions(original[position].toTensor().scalar_type()));
}

void Arguments::fill_outputs() {
    for (size_t position = 0; position < original.size(); ++position) {
        if (!schema_.arguments()[position].is_out() || !original[position].isTensor()) continue;
        const at::Tensor& given = original[position].toTensor();
        const at::Tensor& result = cpu[position].toTensor();
        if (given.sizes() != result.sizes()) given.resize_(result.sizes());
        given.copy_(result);
    }
}

}  // namespace simulated
