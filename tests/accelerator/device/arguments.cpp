#include "arguments.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "generators.hpp"
#include "streams.hpp"

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

template <typename Visit>
void visit_tensors(const c10::IValue& value, Visit visit) {
    if (value.isTensor()) return visit(value.toTensor());
    if (value.isTensorList())
        for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
    if (is_optional_tensor_list(value))
        for (const c10::IValue& element : value.toListRef())
            if (element.isTensor()) visit(element.toTensor());
}

}  // namespace

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
    for (size_t position = 0; position < original.size(); ++position)
        add(schema.arguments()[position], original[position]);
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

void Arguments::add(const c10::Argument& argument, const c10::IValue& value) {
    const bool write = argument.alias_info() && argument.alias_info()->isWrite();
    if (is_generator(argument)) return add_generator(value);
    if (value.isTensor()) {
        const Converted tensor = convert(value.toTensor(), write);
        cpu.emplace_back(tensor.cpu);
        meta.emplace_back(tensor.meta);
    } else if (value.isTensorList()) {
        c10::List<at::Tensor> cpus, metas;
        for (const at::Tensor& each : value.toTensorVector()) {
            const Converted tensor = convert(each, write);
            cpus.push_back(tensor.cpu);
            metas.push_back(tensor.meta);
        }
        cpu.emplace_back(std::move(cpus));
        meta.emplace_back(std::move(metas));
    } else if (is_optional_tensor_list(value)) {
        c10::List<std::optional<at::Tensor>> cpus, metas;
        for (const c10::IValue& each : value.toListRef()) {
            const bool is_tensor = each.isTensor() && each.toTensor().defined();
            const Converted tensor = is_tensor ? convert(each.toTensor(), write) : Converted{};
            cpus.push_back(is_tensor ? std::optional(tensor.cpu) : std::nullopt);
            metas.push_back(is_tensor ? std::optional(tensor.meta) : std::nullopt);
        }
        cpu.emplace_back(std::move(cpus));
        meta.emplace_back(std::move(metas));
    } else if (value.isDevice()) {
        cpu.emplace_back(c10::Device(c10::DeviceType::CPU));
        meta.emplace_back(c10::Device(c10::DeviceType::Meta));
    } else {
        cpu.push_back(value);
        meta.push_back(value);
    }
}

Arguments::Converted Arguments::convert(const at::Tensor& tensor, bool write) {
    if (tensor.defined() && tensor.device().type() == kDeviceType) add_ranges(ranges, tensor, write);
    for (const Converted& each : converted_)
        if (each.original.is_same(tensor)) return each;
    Converted added{tensor, tensor, tensor};
    if (tensor.defined()) {
        TORCH_CHECK(tensor.layout() == c10::kStrided, schema_.name(),
                    ": the simulated accelerator has strided tensors only");
        if (tensor.device().type() == kDeviceType) {
            added.cpu = on_device_thread(tensor);
        } else {
            const bool is_index = schema_.name().find("index") != std::string::npos && !tensor.is_floating_point();
            TORCH_CHECK(tensor.is_cpu() && !write && (tensor.dim() == 0 || is_index), schema_.name(),
                        ": expected all tensors to be on the same device, but found simulated:", device, " and ",
                        tensor.device());
            added.cpu = tensor.clone();
        }
        // A number on the CPU stays one: it takes no part in type promotion.
        added.meta = tensor.is_cpu() && tensor.dim() == 0 ? added.cpu : to_meta(tensor);
    }
    converted_.push_back(added);
    return added;
}

void Arguments::add_generator(const c10::IValue& value) {
    meta.emplace_back();
    at::Generator generator = default_generator(device);
    if (value.isGenerator() && value.toGenerator().defined()) generator = value.toGenerator();
    TORCH_CHECK(generator.device().type() == kDeviceType, schema_.name(),
                ": expected a generator of the simulated accelerator, but found one of ", generator.device());
    const std::lock_guard<std::mutex> lock(generator.mutex());
    cpu.emplace_back(at::detail::createCPUGenerator(generator.get<at::CPUGeneratorImpl>()->random64()));
}

void Arguments::resize_outputs() {
    for (size_t position = 0; position < original.size(); ++position) {
        const auto& argument = schema_.arguments()[position];
        if (!argument.alias_info() || !argument.alias_info()->isWrite() || !original[position].isTensor()) continue;
        const at::Tensor& given = original[position].toTensor();
        const at::Tensor& inferred = meta[position].toTensor();
        if (!given.defined() || given.sizes() == inferred.sizes()) continue;
        given.resize_(inferred.sizes());
        given.unsafeGetTensorImpl()->set_sizes_and_strides(inferred.sizes(), inferred.strides());
        add_ranges(ranges, given, true);
        cpu[position] = on_device_thread(given);
    }
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
