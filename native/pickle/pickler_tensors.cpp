// Pickles tensors and parameters as torch does: calls that rebuild them from a storage, named by a persistent id.
#include "bindings/objects.hpp"
#include "pickle/pickler.hpp"

namespace nb = nanobind;

namespace fastio {

bool Pickler::tensor(nb::handle value, bool is_shared) {
    bool is_cpu;
    if (!is_plain(value, is_cpu) || !global(rebuild_tensor_)) return false;
    op('(');
    if (!storage(call(value, attributes_.untyped_storage), get_attribute(value, attributes_.dtype), is_cpu))
        return false;
    nb::object size = call(value, attributes_.size), stride = call(value, attributes_.stride);
    if (!integer(call(value, attributes_.storage_offset)) || !tuple(size, false) || !tuple(stride, false)) return false;
    if (!save(get_attribute(value, attributes_.requires_grad)) || !no_hooks()) return false;
    op('t');
    put_new();
    op('R');
    is_shared ? put(value) : put_new();
    return true;
}

bool Pickler::parameter(nb::handle value) {
    if (is_true(get_attribute(value, attributes_.dict)) || !global(rebuild_parameter_)) return false;
    nb::object data = get_attribute(value, attributes_.data);
    if (!data.type().is(tensor_) || !tensor(data, false)) return false;
    if (!save(get_attribute(value, attributes_.requires_grad)) || !no_hooks()) return false;
    op(0x87);  // TUPLE3
    put_new();
    op('R');
    put(value);
    return true;
}

// Writes a storage's persistent id: "storage", the class for its dtype, its key, its location, its number of elements.
bool Pickler::storage(nb::handle value, nb::handle dtype, bool is_cpu) {
    PyObject* kind = PyDict_GetItemWithError(classes_.ptr(), dtype.ptr());
    if (kind == nullptr) return false;  // torch rebuilds this dtype in another way
    const auto address = unsigned_of(call(value, attributes_.data_ptr));
    if (address != 0 && !dtypes_.try_emplace(address, nb::borrow(dtype)).first->second.is(dtype)) return false;
    // A load expects whole elements. The rest of the storage, of which no tensor of this dtype has a byte, is left out.
    const auto itemsize = unsigned_of(get_attribute(dtype, attributes_.itemsize));
    const auto nbytes = unsigned_of(call(value, attributes_.nbytes));
    const auto elements = nbytes / itemsize;
    trimmed_ = trimmed_ || nbytes % itemsize != 0;
    auto [known, is_new] = keys_.try_emplace(unsigned_of(get_attribute(value, attributes_.cdata)));
    if (is_new) {
        known->second = nb::str(nb::int_(keys_.size() - 1));
        found_.append(nb::make_tuple(nb::str("data/") + known->second, value, elements * itemsize));
    }
    nb::object key = known->second;
    nb::object location = is_cpu && !cpu_.is_none() ? cpu_ : locate_(value);
    op('(');
    if (!save(attributes_.storage) || !global(kind) || !save(key) || !save(location)) return false;
    write(static_cast<int64_t>(elements));
    op('t');
    put_new();
    op('Q');  // BINPERSID
    return true;
}

// Whether torch reduces the tensor to nothing but a storage and its strides, without a warning.
bool Pickler::is_plain(nb::handle value, bool& is_cpu) const {
    if (!get_attribute(value, attributes_.layout).is(strided_)) return false;
    is_cpu = is_true(get_attribute(value, attributes_.is_cpu));
    if (!is_cpu) {
        const nb::object device = get_attribute(value, attributes_.device);
        if (!devices_.contains(get_attribute(device, attributes_.type))) return false;
    }
    for (const nb::object* unusual :
         {&attributes_.is_quantized, &attributes_.is_nested, &attributes_.backward_hooks, &attributes_.dict}) {
        if (is_true(get_attribute(value, *unusual))) return false;
    }
    return !is_true(call(value, attributes_.is_conj)) && !is_true(call(value, attributes_.is_neg));
}

// Writes an empty OrderedDict for the tensor's hooks, which are not saved.
bool Pickler::no_hooks() {
    if (!global(ordered_dict_)) return false;
    op(')');
    op('R');
    put_new();
    return true;
}

}  // namespace fastio
