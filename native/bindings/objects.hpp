// Calls of Python's C API that throw its errors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace fastio {

[[noreturn]] inline void raise() { throw nanobind::python_error(); }

// Takes a new reference; throws Python's error if it is null.
inline nanobind::object steal_or_throw(PyObject* result) {
    if (result == nullptr) raise();
    return nanobind::steal(result);
}

inline bool is_true(nanobind::handle value) {
    const int result = PyObject_IsTrue(value.ptr());
    if (result < 0) raise();
    return result != 0;
}

inline nanobind::object interned(const char* text) { return steal_or_throw(PyUnicode_InternFromString(text)); }

inline nanobind::object get_attribute(nanobind::handle value, const nanobind::object& name) {
    return steal_or_throw(PyObject_GetAttr(value.ptr(), name.ptr()));
}

inline nanobind::object call(nanobind::handle value, const nanobind::object& method) {
    return steal_or_throw(PyObject_CallMethodNoArgs(value.ptr(), method.ptr()));
}

// Returns the next item; an invalid object at the end.
inline nanobind::object next_item(const nanobind::object& iterator) {
    PyObject* item = PyIter_Next(iterator.ptr());
    if (item == nullptr && PyErr_Occurred()) raise();
    return nanobind::steal(item);
}

inline uint64_t unsigned_of(const nanobind::object& value) {
    const uint64_t number = PyLong_AsUnsignedLongLong(value.ptr());
    if (number == UINT64_MAX && PyErr_Occurred()) raise();
    return number;
}

}  // namespace fastio
