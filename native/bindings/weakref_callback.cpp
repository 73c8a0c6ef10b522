#include <nanobind/nanobind.h>

#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// A callback for weak references that runs no Python code in a destructor, where an exception of a signal handler,
// KeyboardInterrupt too, would be lost. `keep`, which must be written in C, gets the reference at once; the main thread
// calls `answer` soon after.
class DeferredWeakrefCallback {
  public:
    DeferredWeakrefCallback(nb::object keep, nb::object answer) : keep_(std::move(keep)), answer_(std::move(answer)) {}

    void call(nb::handle reference) {
        keep_(reference);
        if (is_pending_) return;
        nb::object self = nb::find(this);
        // The interpreter's queue of pending calls may be full: the next callback then tries again.
        is_pending_ = Py_AddPendingCall(&DeferredWeakrefCallback::answer, self.ptr()) == 0;
        if (is_pending_) self.release();
    }

  private:
    // Returns 0, or -1 with an exception set, which is then raised in the main thread.
    static int answer(void* object) {
        nb::object self = nb::steal(static_cast<PyObject*>(object));
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
                                        "A callback for weak references that runs no Python code in a destructor.")
        .def(nb::init<nb::object, nb::object>(), "keep"_a, "answer"_a)
        .def("__call__", &DeferredWeakrefCallback::call, "reference"_a);
}

}  // namespace fastio
