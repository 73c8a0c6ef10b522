#include <nanobind/nanobind.h>

#include "bindings/values.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// A weak reference to a torch storage, like that of torch.multiprocessing, but without a destructor in Python: an
// exception that a signal handler raises in such a destructor, KeyboardInterrupt too, is lost.
class WeakStorage {
  public:
    explicit WeakStorage(const nb::object& storage)
        : free_(storage.attr("_free_weak_ref")), cdata_(storage.attr("_weak_ref")()) {}
    WeakStorage(const WeakStorage&) = delete;
    WeakStorage& operator=(const WeakStorage&) = delete;
    ~WeakStorage() {
        nb::error_scope raised;  // a destructor may run while an exception is set
        Py_XDECREF(PyObject_CallOneArg(free_.ptr(), cdata_.ptr()));
    }

    nb::object cdata() const { return cdata_; }

  private:
    nb::object free_, cdata_;
};

}  // namespace

void bind_weak_storage(nb::module_& module) {
    nb::class_<WeakStorage>(module, "WeakStorage",
                            "A weak reference to a torch storage, whose destructor runs no Python code.")
        .def(nb::init<const nb::object&>(), "storage"_a)
        .def_prop_ro("cdata", &WeakStorage::cdata);
}

}  // namespace fastio
