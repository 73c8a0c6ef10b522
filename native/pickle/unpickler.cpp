#include "pickle/unpickler.hpp"

#include <cstring>
#include <utility>

#include "bindings/objects.hpp"

namespace nb = nanobind;

namespace fastio {

namespace {

void check(int result) {
    if (result < 0) raise();
}

}  // namespace

Unpickler::Unpickler(nb::dict names, nb::dict calls, nb::object load, nb::frozenset classes)
    : names_(names), load_(std::move(load)), classes_(classes) {
    for (auto [function, called] : calls) calls_.emplace_back(nb::borrow(function), nb::borrow(called));
    ordered_dict_ = nb::module_::import_("collections").attr("OrderedDict");
}

bool Unpickler::run(std::string_view pickle, nb::object& result) {
    rest_ = pickle;
    std::string_view opcode;
    while (take(1, opcode)) {
        if (opcode[0] == '.') {
            if (!marks_.empty() || stack_.size() != 1) return false;
            result = pop();
            return true;
        }
        if (!step(static_cast<uint8_t>(opcode[0]))) return false;
    }
    return false;
}

bool Unpickler::step(uint8_t opcode) {
    uint64_t value = 0;
    switch (opcode) {
        case 0x80:  // PROTO
            if (!number(1, protocol_)) return false;
            return protocol_ == 2 || (nb::len(classes_) > 0 && protocol_ > 2 && protocol_ <= 5);
        case '(':  // MARK
            marks_.push_back(stack_.size());
            return true;
        case 'N':  // NONE
            return push(nb::none());
        case 0x88:  // NEWTRUE
            return push_new(PyBool_FromLong(1));
        case 0x89:  // NEWFALSE
            return push_new(PyBool_FromLong(0));
        case 'K':  // BININT1
            return number(1, value) && push_new(PyLong_FromLong(static_cast<long>(value)));
        case 'M':  // BININT2
            return number(2, value) && push_new(PyLong_FromLong(static_cast<long>(value)));
        case 'J':  // BININT
            return number(4, value) && push_new(PyLong_FromLong(static_cast<int32_t>(value)));
        case 0x8a:  // LONG1
            return long_number();
        case 'G': {  // BINFLOAT
            std::string_view data;
            if (!take(8, data)) return false;
            for (char byte : data) value = value << 8 | static_cast<uint8_t>(byte);
            double real;
            std::memcpy(&real, &value, sizeof real);
            return push_new(PyFloat_FromDouble(real));
        }
        case 'X':  // BINUNICODE
            return text(4);
        case ')':  // EMPTY_TUPLE
            return push_new(PyTuple_New(0));
        case 0x85:  // TUPLE1
        case 0x86:
        case 0x87:
            return has(opcode - 0x84) && pop_tuple(opcode - 0x84);
        case 't': {  // TUPLE
            if (marks_.empty()) return false;
            size_t values = stack_.size() - marks_.back();
            marks_.pop_back();
            return pop_tuple(values);
        }
        case ']':  // EMPTY_LIST
            return push_new(PyList_New(0));
        case '}':  // EMPTY_DICT
            return push_new(PyDict_New());
        case 'a':  // APPEND
            return has(2) && append(stack_.size() - 1);
        case 's':  // SETITEM
            return has(3) && set_items(stack_.size() - 2);
        case 'e':    // APPENDS
        case 'u': {  // SETITEMS
            if (marks_.empty()) return false;
            size_t from = marks_.back();
            marks_.pop_back();
            if (from <= base()) return false;  // no container before the mark
            return opcode == 'e' ? append(from) : set_items(from);
        }
        case 'q':  // BINPUT
            return number(1, value) && put(value);
        case 'r':  // LONG_BINPUT
            return number(4, value) && put(value);
        case 'h':  // BINGET
            return number(1, value) && get(value);
        case 'j':  // LONG_BINGET
            return number(4, value) && get(value);
        case 'c':  // GLOBAL
            return global();
        case 'Q': {  // BINPERSID
            if (!has(1) || !PyTuple_CheckExact(stack_.back().ptr())) return false;
            nb::object id = pop();
            return push(load_(id));
        }
        case 'R':  // REDUCE
            return has(2) && reduce();
        case 0x81:  // NEWOBJ
            return has(2) && make();
        case 'b':  // BUILD
            return has(2) && build();
        default:
            return protocol_ > 2 && step_of_later_protocol(opcode);
    }
}

bool Unpickler::step_of_later_protocol(uint8_t opcode) {
    uint64_t value = 0;
    switch (opcode) {
        case 'C':  // SHORT_BINBYTES
            return bytes(1);
        case 'B':  // BINBYTES
            return bytes(4);
        case 0x8c:  // SHORT_BINUNICODE
            return text(1);
        case 0x93:  // STACK_GLOBAL
            return has(2) && global_on_stack();
        case 0x94:  // MEMOIZE
            return put(memo_.size());
        case 0x95:  // FRAME: its length helps to read a file, and tells one that was cut
            return number(8, value) && value <= rest_.size();
        default:
            return false;
    }
}

bool Unpickler::take(size_t nbytes, std::string_view& data) {
    if (nbytes > rest_.size()) return false;
    data = rest_.substr(0, nbytes);
    rest_.remove_prefix(nbytes);
    return true;
}

bool Unpickler::number(size_t nbytes, uint64_t& value) {
    std::string_view data;
    if (!take(nbytes, data)) return false;
    value = 0;  // little-endian
    for (size_t at = nbytes; at-- > 0;) value = value << 8 | static_cast<uint8_t>(data[at]);
    return true;
}

bool Unpickler::push(nb::object value) {
    stack_.push_back(std::move(value));
    return true;
}

bool Unpickler::push_new(PyObject* value) {
    if (value == nullptr) raise();
    return push(nb::steal(value));
}

nb::object Unpickler::pop() {
    nb::object value = std::move(stack_.back());
    stack_.pop_back();
    return value;
}

bool Unpickler::pop_tuple(size_t values) {
    PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(values));
    if (tuple == nullptr) raise();
    size_t from = stack_.size() - values;
    for (size_t index = 0; index < values; ++index) {
        PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(index), stack_[from + index].release().ptr());
    }
    stack_.resize(from);
    return push_new(tuple);
}

bool Unpickler::global() {
    size_t module = rest_.find('\n');
    size_t name = module == std::string_view::npos ? module : rest_.find('\n', module + 1);
    if (name == std::string_view::npos) return false;
    nb::bytes key(rest_.data(), name);
    rest_.remove_prefix(name + 1);
    return push_global(key);
}

bool Unpickler::global_on_stack() {
    nb::object name = pop(), module = pop();
    if (!PyUnicode_CheckExact(name.ptr()) || !PyUnicode_CheckExact(module.ptr())) return false;
    nb::object joined = steal_or_throw(PyUnicode_FromFormat("%U\n%U", module.ptr(), name.ptr()));
    nb::object key = steal_or_throw(PyUnicode_AsEncodedString(joined.ptr(), "utf-8", "surrogatepass"));
    return push_global(nb::borrow<nb::bytes>(key));
}

bool Unpickler::push_global(nb::bytes name) {
    PyObject* found = PyDict_GetItemWithError(names_.ptr(), name.ptr());
    if (found != nullptr) return push(nb::borrow(found));
    if (PyErr_Occurred()) raise();
    return false;
}

bool Unpickler::text(size_t width) {
    uint64_t nbytes = 0;
    std::string_view data;
    if (!number(width, nbytes) || !take(nbytes, data)) return false;
    return push_new(PyUnicode_DecodeUTF8(data.data(), static_cast<Py_ssize_t>(nbytes), "surrogatepass"));
}

bool Unpickler::bytes(size_t width) {
    uint64_t nbytes = 0;
    std::string_view data;
    if (!number(width, nbytes) || !take(nbytes, data)) return false;
    return push_new(PyBytes_FromStringAndSize(data.data(), static_cast<Py_ssize_t>(nbytes)));
}

bool Unpickler::long_number() {
    uint64_t nbytes = 0;
    std::string_view data;
    if (!number(1, nbytes) || !take(nbytes, data)) return false;
    nb::handle type(reinterpret_cast<PyObject*>(&PyLong_Type));
    return push(type.attr("from_bytes")(nb::bytes(data.data(), data.size()), "little", nb::arg("signed") = true));
}

bool Unpickler::reduce() {
    nb::object arguments = pop();
    if (!PyTuple_CheckExact(arguments.ptr())) return false;
    for (const auto& [function, called] : calls_) {
        if (!stack_.back().is(function)) continue;
        PyObject* result = PyObject_CallObject(called.ptr(), arguments.ptr());
        if (result == nullptr) raise();
        stack_.back() = nb::steal(result);
        return true;
    }
    return false;
}

bool Unpickler::is_class(nb::handle found) const {
    int is_one = PySet_Contains(classes_.ptr(), found.ptr());
    check(is_one);
    return is_one == 1;
}

bool Unpickler::make() {
    nb::object arguments = pop(), type = pop();
    if (!PyType_Check(type.ptr()) || !is_class(type)) return false;
    if (!PyTuple_CheckExact(arguments.ptr()) || nb::len(arguments) > 0) return false;
    auto* made = reinterpret_cast<PyTypeObject*>(type.ptr());
    return push_new(made->tp_new(made, arguments.ptr(), nullptr));
}

bool Unpickler::build() {
    nb::object state = pop();
    nb::handle instance = stack_.back();
    bool is_made = is_class(instance.type());
    if (is_made && nb::hasattr(instance, "__setstate__")) {
        instance.attr("__setstate__")(state);
        return true;
    }
    if (!(is_made || instance.type().is(ordered_dict_)) || !PyDict_CheckExact(state.ptr())) return false;
    nb::object attributes = instance.attr("__dict__");
    check(PyDict_Update(attributes.ptr(), state.ptr()));
    return true;
}

bool Unpickler::append(size_t from) {
    PyObject* list = stack_[from - 1].ptr();
    if (!PyList_CheckExact(list)) return false;
    for (size_t index = from; index < stack_.size(); ++index) check(PyList_Append(list, stack_[index].ptr()));
    stack_.resize(from);
    return true;
}

bool Unpickler::set_items(size_t from) {
    nb::handle target = stack_[from - 1];
    if ((stack_.size() - from) % 2 != 0) return false;
    if (!PyDict_CheckExact(target.ptr()) && !target.type().is(ordered_dict_)) return false;
    for (size_t index = from; index < stack_.size(); index += 2) {
        check(PyObject_SetItem(target.ptr(), stack_[index].ptr(), stack_[index + 1].ptr()));
    }
    stack_.resize(from);
    return true;
}

// Pickles number their memo from 0 up. Any other index is refused, or it could make the memo arbitrarily large.
bool Unpickler::put(uint64_t index) {
    if (!has(1) || index != memo_.size()) return false;
    memo_.push_back(stack_.back());
    return true;
}

bool Unpickler::get(uint64_t index) { return index < memo_.size() && push(memo_[index]); }

}  // namespace fastio
