// Defines the Python module fastio._native and translates C++ exceptions for it.
#include <nanobind/nanobind.h>

#include "bindings/values.hpp"
#include "support/errors.hpp"
#include "zip/entries.hpp"

namespace nb = nanobind;

namespace {

// Raises NativeError(kind, ...). fastio/runtime/native_errors.py, which knows the path, translates it to a public
// error.
template <typename... Fields>
void raise(const char* kind, Fields... fields) {
    nb::object error = nb::module_::import_("fastio.runtime.native_errors").attr("NativeError")(kind, fields...);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
    try {
        std::rethrow_exception(pointer);
    } catch (const fastio::SystemError& error) {
        raise("system", error.error, error.operation.c_str(), error.offset);
    } catch (const fastio::Refused& error) {
        raise("refused", error.reason.c_str());
    } catch (const fastio::Truncated& error) {
        raise("truncated", error.offset);
    } catch (const fastio::Malformed& error) {
        raise("malformed", nb::bytes(error.record.data(), error.record.size()), error.what());
    }
}

}  // namespace

NB_MODULE(_native, module) {
    // Tensors that still exist at exit keep their slices, which is not a leak.
    nb::set_leak_warnings(false);
    nb::register_exception_translator(translate);
    fastio::bind_holds(module);
    fastio::bind_weak_storage(module);
    fastio::bind_hooks(module);
    fastio::bind_waiting(module);
    fastio::bind_descriptor(module);
    fastio::bind_memory(module);
    fastio::bind_transfers(module);
    fastio::bind_staged(module);
    fastio::bind_files(module);
    fastio::bind_codec(module);
    fastio::bind_pickle(module);
    fastio::bind_store(module);
    fastio::bind_vfio(module);
    fastio::bind_header_entries(module);
}
