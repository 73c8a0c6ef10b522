#include <nanobind/nanobind.h>
#include <structmember.h>

#include <utility>

#include "bindings/values.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// Gets what nothing holds any more. `keep`, which must be written in C, gets it at once; the main thread calls `answer`
// soon after. No Python code runs in a destructor, where an exception of a signal handler, KeyboardInterrupt too, would
// be lost.
class Releases {
  public:
    Releases(nb::object keep, nb::object answer) : keep_(std::move(keep)), answer_(std::move(answer)) {}

    void add(nb::handle released) {
        keep_(released);
        if (is_pending_) return;
        nb::object self = nb::find(this);
        // The interpreter's queue of pending calls may be full: the next release then tries again.
        is_pending_ = Py_AddPendingCall(&Releases::answer, self.ptr()) == 0;
        if (is_pending_) self.release();
    }

  private:
    // Returns 0, or -1 with an exception set, which is then raised in the main thread.
    static int answer(void* object) {
        nb::object self = nb::steal(static_cast<PyObject*>(object));
        try {
            Releases& releases = nb::cast<Releases&>(self);
            releases.is_pending_ = false;
            releases.answer_();
            return 0;
        } catch (nb::python_error& error) {
            error.restore();
            return -1;
        }
    }

    nb::object keep_, answer_;
    bool is_pending_ = false;
};

// Counts itself in the attribute `holds` of `saved`, and gives it to `releases` when it was the last one. A type of
// CPython's own, which is made with one call: a training makes one for each saved tensor. Python's cycle collector
// looks into it: an error that `saved` keeps has frames in its traceback that hold it. Other objects of such a cycle
// are cleared.
struct Hold {
    PyObject ob_base;
    PyObject *releases, *saved, *owner, *view, *maker;
};

// Adds to the number of holds and returns it; -1 with an exception set.
long add_holds(PyObject* saved, long more) {
    static PyObject* const name = PyUnicode_InternFromString("holds");
    nb::object before = nb::steal(PyObject_GetAttr(saved, name));
    if (!before.is_valid()) return -1;
    long holds = PyLong_AsLong(before.ptr());
    if (holds == -1 && PyErr_Occurred() != nullptr) return -1;
    holds += more;
    nb::object after = nb::steal(PyLong_FromLong(holds));
    return after.is_valid() && PyObject_SetAttr(saved, name, after.ptr()) == 0 ? holds : -1;
}

PyObject* new_hold(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject *releases, *saved, *owner = Py_None, *view = Py_None, *maker = Py_None;
    if (kwargs != nullptr && PyDict_GET_SIZE(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Hold takes no keyword arguments");
        return nullptr;
    }
    if (!PyArg_UnpackTuple(args, "Hold", 2, 5, &releases, &saved, &owner, &view, &maker)) return nullptr;
    if (!nb::isinstance<Releases>(releases)) {
        PyErr_SetString(PyExc_TypeError, "Hold takes a Releases first");
        return nullptr;
    }
    PyObject* made = type->tp_alloc(type, 0);
    if (made == nullptr || add_holds(saved, 1) < 0) {
        Py_XDECREF(made);
        return nullptr;
    }
    Hold* hold = reinterpret_cast<Hold*>(made);
    hold->releases = Py_NewRef(releases);
    hold->saved = Py_NewRef(saved);
    hold->owner = Py_NewRef(owner);
    hold->view = Py_NewRef(view);
    hold->maker = Py_NewRef(maker);
    return made;
}

int visit_hold(PyObject* self, visitproc visit, void* arg) {
    const Hold* hold = reinterpret_cast<Hold*>(self);
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(hold->releases);
    Py_VISIT(hold->saved);
    Py_VISIT(hold->owner);
    Py_VISIT(hold->view);
    Py_VISIT(hold->maker);
    return 0;
}

void free_hold(PyObject* self) {
    PyObject_GC_UnTrack(self);
    Hold* hold = reinterpret_cast<Hold*>(self);
    {
        nb::error_scope raised;  // a destructor may run while an exception is set
        if (hold->saved != nullptr && add_holds(hold->saved, -1) == 0) {
            nb::cast<Releases&>(nb::handle(hold->releases)).add(hold->saved);
        }
    }
    for (PyObject* one : {hold->releases, hold->saved, hold->owner, hold->view, hold->maker}) Py_XDECREF(one);
    PyTypeObject* type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyMemberDef hold_members[] = {{"saved", T_OBJECT_EX, offsetof(Hold, saved), READONLY, nullptr},
                              {"owner", T_OBJECT_EX, offsetof(Hold, owner), READONLY, nullptr},
                              {"view", T_OBJECT_EX, offsetof(Hold, view), READONLY, nullptr},
                              {"maker", T_OBJECT_EX, offsetof(Hold, maker), READONLY, nullptr},
                              {nullptr, 0, 0, 0, nullptr}};

PyType_Slot hold_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_hold)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(free_hold)},
                            {Py_tp_traverse, reinterpret_cast<void*>(visit_hold)},
                            {Py_tp_members, hold_members},
                            {Py_tp_doc, const_cast<char*>("Keeps what is saved until the last of its holds is gone.")},
                            {0, nullptr}};

PyType_Spec hold_spec = {"fastio._native.Hold", sizeof(Hold), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, hold_slots};

}  // namespace

void bind_holds(nb::module_& module) {
    nb::class_<Releases>(module, "Releases", "Gets what nothing holds any more, without Python code in a destructor.")
        .def(nb::init<nb::object, nb::object>(), "keep"_a, "answer"_a);
    module.attr("Hold") = nb::steal(PyType_FromSpec(&hold_spec));
}

}  // namespace fastio
