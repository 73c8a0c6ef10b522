#include <nanobind/nanobind.h>

#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// Rung by weak references whose objects die. Python code in a destructor would lose what a signal raises there, Ctrl-C
// too: so `keep`, which is written in C, gets the reference, and `answer` is called when the main thread comes to it.
class DeferredWeakrefCallback {
  public:
    DeferredWeakrefCallback(nb::object keep, nb::object answer) : keep_(std::move(keep)), answer_(std::move(answer)) {}

    void call(nb::handle reference) {
        keep_(reference);
        if (is_pending_) return;
        nb::object self = nb::find(this);
        // The interpreter has room for some calls only: where there is none, the next ring tries again.
        is_pending_ = Py_AddPendingCall(&DeferredWeakrefCallback::answer, self.ptr()) == 0;
        if (is_pending_) self.release();
    }

  private:
    // 0, or -1 with an exception set, which is raised where the main thread is.
    static int answer(void* of) {
        nb::object self = nb::steal(static_cast<PyObject*>(of));
        try {
            DeferredWeakrefCallback& callback = nb::cast<DeferredWeakrefCallback&>(self);
            callback.is_pending_ = false;
            callback.answer_();
            return 0;
        } catch (nb::python_error& error) {
            error.restore();
            return -1;
        }
    }

    nb::object keep_, answer_;
    bool is_pending_ = false;
};

}  // namespace

void bind_weakref_callback(nb::module_& module) {
    nb::class_<DeferredWeakrefCallback>(module, "DeferredWeakrefCallback",
                                        "A callback for weak references, which runs no Python code in a destructor.")
        .def(nb::init<nb::object, nb::object>(), "keep"_a, "answer"_a)
        .def("__call__", &DeferredWeakrefCallback::call, "reference"_a);
}

}  // namespace fastio
