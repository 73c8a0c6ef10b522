#include "pickle/pickler.hpp"

#include <cstring>
#include <utility>

#include "bindings/objects.hpp"

namespace nb = nanobind;

namespace fastio {

namespace {

constexpr Py_ssize_t kBatch = 1000;  // items between two marks
constexpr unsigned kMaxDepth = 100;  // nested containers; Python's own limit counts its frames

}  // namespace

Pickler::AttributeNames::AttributeNames()
    : backward_hooks(interned("_backward_hooks")),
      cdata(interned("_cdata")),
      data(interned("data")),
      data_ptr(interned("data_ptr")),
      device(interned("device")),
      dict(interned("__dict__")),
      dtype(interned("dtype")),
      is_conj(interned("is_conj")),
      is_cpu(interned("is_cpu")),
      is_neg(interned("is_neg")),
      is_nested(interned("is_nested")),
      is_quantized(interned("is_quantized")),
      itemsize(interned("itemsize")),
      layout(interned("layout")),
      nbytes(interned("nbytes")),
      reduce(interned("__reduce__")),
      requires_grad(interned("requires_grad")),
      size(interned("size")),
      storage(interned("storage")),
      storage_offset(interned("storage_offset")),
      stride(interned("stride")),
      type(interned("type")),
      untyped_storage(interned("untyped_storage")) {}

Pickler::Pickler(nb::dict names, nb::dict storages, nb::tuple rebuild, nb::object locate, nb::object cpu,
                 nb::frozenset devices)
    : names_(names), classes_(storages), devices_(devices), locate_(std::move(locate)), cpu_(std::move(cpu)) {
    rebuild_tensor_ = rebuild[0];
    rebuild_parameter_ = rebuild[1];
    nb::module_ torch = nb::module_::import_("torch");
    ordered_dict_ = nb::module_::import_("collections").attr("OrderedDict");
    tensor_ = torch.attr("Tensor");
    parameter_ = torch.attr("nn").attr("Parameter");
    dtype_ = torch.attr("dtype");
    strided_ = torch.attr("strided");
}

bool Pickler::run(nb::handle object) {
    op(0x80);  // PROTO
    op(2);
    if (!save(object)) return false;
    op('.');
    return true;
}

bool Pickler::save(nb::handle value) {
    if (value.is_none()) return op('N'), true;
    if (PyBool_Check(value.ptr())) return op(value.ptr() == Py_True ? 0x88 : 0x89), true;
    if (PyLong_CheckExact(value.ptr())) return integer(value);
    if (PyFloat_CheckExact(value.ptr())) return real(value);
    if (get(value)) return true;
    if (PyUnicode_CheckExact(value.ptr())) return text(value);
    if (++depth_ > kMaxDepth) return false;
    const bool saved = save_new(value);
    --depth_;
    return saved;
}

// Saves an object that is not in the memo, of a type that can hold others.
bool Pickler::save_new(nb::handle value) {
    if (PyDict_CheckExact(value.ptr())) return dict(value);
    if (PyTuple_CheckExact(value.ptr())) return tuple(value, true);
    if (PyList_CheckExact(value.ptr())) return list(value);
    const nb::handle type = value.type();
    if (type.is(tensor_)) return tensor(value, true);
    if (type.is(parameter_)) return parameter(value);
    if (type.is(ordered_dict_)) return ordered_dict(value);
    return type.is(dtype_) && global(value);
}

bool Pickler::text(nb::handle value) {
    Py_ssize_t nbytes;
    const char* data = PyUnicode_AsUTF8AndSize(value.ptr(), &nbytes);
    if (data == nullptr) {  // a lone surrogate
        PyErr_Clear();
        return false;
    }
    if (nbytes > INT32_MAX) return false;
    op('X');  // BINUNICODE
    number(static_cast<uint64_t>(nbytes), 4);
    data_.append(data, static_cast<size_t>(nbytes));
    put(value);
    return true;
}

bool Pickler::integer(nb::handle value) {
    if (!PyLong_CheckExact(value.ptr())) return false;  // a SymInt
    int overflow;
    const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow == 0) write(static_cast<int64_t>(number));
    return overflow == 0;
}

void Pickler::write(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    if (value >= 0 && value <= 0xff) {
        op('K');  // BININT1
        number(bits, 1);
    } else if (value >= 0 && value <= 0xffff) {
        op('M');  // BININT2
        number(bits, 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        op('J');  // BININT
        number(bits, 4);
    } else {
        size_t nbytes = 5;  // the fewest that hold the sign bit too
        while (nbytes < 8 && value >> (8 * nbytes - 1) != 0 && value >> (8 * nbytes - 1) != -1) ++nbytes;
        op(0x8a);  // LONG1
        number(nbytes, 1);
        number(bits, nbytes);
    }
}

bool Pickler::real(nb::handle value) {
    const double number = PyFloat_AS_DOUBLE(value.ptr());
    uint64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    op('G');  // BINFLOAT, big-endian
    for (int shift = 56; shift >= 0; shift -= 8) op(static_cast<uint8_t>(bits >> shift));
    return true;
}

bool Pickler::tuple(nb::handle value, bool is_shared) {
    const Py_ssize_t length = PyTuple_GET_SIZE(value.ptr());
    if (length == 0) return op(')'), true;  // EMPTY_TUPLE
    if (length > 3) op('(');                // MARK
    for (Py_ssize_t index = 0; index < length; ++index) {
        if (!save(PyTuple_GET_ITEM(value.ptr(), index))) return false;
    }
    if (is_shared && memo_.count(value.ptr()) != 0) return false;  // the tuple contains itself
    op(length > 3 ? 't' : static_cast<uint8_t>(0x84 + length));    // TUPLE, TUPLE1..3
    is_shared ? put(value) : put_new();
    return true;
}

void Pickler::before_item(Py_ssize_t index, bool is_alone) {
    if (!is_alone && index % kBatch == 0) op('(');  // MARK
}

void Pickler::after_item(Py_ssize_t index, bool is_alone, bool is_last, uint8_t one, uint8_t many) {
    if (is_alone) {
        op(one);
    } else if (is_last || (index + 1) % kBatch == 0) {
        op(many);
    }
}

bool Pickler::list(nb::handle value) {
    op(']');  // EMPTY_LIST
    put(value);
    const Py_ssize_t length = PyList_GET_SIZE(value.ptr());
    for (Py_ssize_t index = 0; index < length; ++index) {
        before_item(index, length == 1);
        if (index >= PyList_GET_SIZE(value.ptr())) return false;  // the list changed meanwhile
        nb::object item = nb::borrow(PyList_GET_ITEM(value.ptr(), index));
        if (!save(item)) return false;
        after_item(index, length == 1, index + 1 == length, 'a', 'e');  // APPEND, APPENDS
    }
    return true;
}

bool Pickler::dict(nb::handle value) {
    op('}');  // EMPTY_DICT
    put(value);
    const Py_ssize_t length = PyDict_Size(value.ptr());
    PyObject *key, *item;
    Py_ssize_t at = 0;
    for (Py_ssize_t index = 0; index < length; ++index) {
        if (PyDict_Size(value.ptr()) != length || !PyDict_Next(value.ptr(), &at, &key, &item)) return false;
        nb::object owned_key = nb::borrow(key), owned_item = nb::borrow(item);
        before_item(index, length == 1);
        if (!save(owned_key) || !save(owned_item)) return false;
        after_item(index, length == 1, index + 1 == length, 's', 'u');  // SETITEM, SETITEMS
    }
    if (length != 0 && length % kBatch == 0) op('('), op('u');  // as Python: it starts a batch before it sees the end
    return true;
}

// Saves what OrderedDict.__reduce__ returns: the class, no arguments, the attributes, None, and an iterator of items.
bool Pickler::ordered_dict(nb::handle value) {
    nb::object reduced = call(value, attributes_.reduce);
    if (!PyTuple_CheckExact(reduced.ptr()) || PyTuple_GET_SIZE(reduced.ptr()) != 5) return false;
    nb::handle arguments = PyTuple_GET_ITEM(reduced.ptr(), 1), state = PyTuple_GET_ITEM(reduced.ptr(), 2);
    if (is_true(arguments) || (!state.is_none() && !PyDict_CheckExact(state.ptr()))) return false;
    if (!global(ordered_dict_)) return false;
    op(')');  // EMPTY_TUPLE
    op('R');  // REDUCE
    put(value);
    nb::object items = nb::borrow(PyTuple_GET_ITEM(reduced.ptr(), 4));
    nb::object item = next_item(items);
    for (Py_ssize_t index = 0; item.is_valid(); ++index) {
        nb::object following = next_item(items);
        const bool is_last = !following.is_valid();
        const bool is_alone = is_last && index % kBatch == 0;  // alone in its batch
        before_item(index, is_alone);
        if (!save(PyTuple_GET_ITEM(item.ptr(), 0)) || !save(PyTuple_GET_ITEM(item.ptr(), 1))) return false;
        after_item(index, is_alone, is_last, 's', 'u');
        item = std::move(following);
    }
    if (state.is_none()) return true;
    kept_.push_back(nb::borrow(state));
    if (!save(state)) return false;
    op('b');  // BUILD
    return true;
}

bool Pickler::global(nb::handle value) {
    if (get(value)) return true;
    PyObject* written = PyDict_GetItemWithError(names_.ptr(), value.ptr());
    if (written == nullptr) {
        if (PyErr_Occurred()) raise();
        return false;
    }
    data_.append(PyBytes_AS_STRING(written), static_cast<size_t>(PyBytes_GET_SIZE(written)));
    put(value);
    return true;
}

void Pickler::number(uint64_t value, size_t nbytes) {
    for (size_t at = 0; at < nbytes; ++at) op(static_cast<uint8_t>(value >> (8 * at)));
}

void Pickler::write_indexed(uint8_t near, uint8_t far, uint64_t index) {
    op(index < 256 ? near : far);
    number(index, index < 256 ? 1 : 4);
}

void Pickler::put(nb::handle value) {
    memo_.emplace(value.ptr(), static_cast<uint32_t>(count_));
    kept_.push_back(nb::borrow(value));
    put_new();
}

void Pickler::put_new() {
    write_indexed('q', 'r', count_++);  // BINPUT, LONG_BINPUT
}

bool Pickler::get(nb::handle value) {
    auto found = memo_.find(value.ptr());
    if (found == memo_.end()) return false;
    write_indexed('h', 'j', found->second);  // BINGET, LONG_BINGET
    return true;
}

}  // namespace fastio
