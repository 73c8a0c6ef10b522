#include <nanobind/nanobind.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// Pushes and pops torch's saved-tensor hooks and keeps a record of them. Each is one native call, so no signal handler
// can run between torch's change and the record's.
class PushedHooks {
  public:
    // `top` returns the (pack, unpack) on top of this thread's stack, or None. It is itself None if this torch cannot
    // report them.
    PushedHooks(nb::object push, nb::object pop, nb::object top)
        : push_(std::move(push)), pop_(std::move(pop)), top_(std::move(top)) {}

    void push(nb::object pack, nb::handle unpack) {
        push_(pack, unpack);
        pushed_.push_back({std::move(pack), PyThread_get_thread_ident()});
    }

    void pop() {
        if (pushed_.empty()) throw nb::index_error("no hooks are pushed");
        pop_();
        pushed_.pop_back();
    }

    // Pops all of these hooks, and only these. After an interrupt, other code's hooks may lie above them, or these may
    // be popped already.
    void pop_all() {
        forget_other_threads();
        std::vector<nb::object> others;
        while (!pushed_.empty()) {
            nb::object top = top_.is_none() ? nb::object() : top_(true);
            if (top.is_valid() && top.is_none()) break;
            const size_t index = top.is_valid() ? index_of(top[0]) : pushed_.size() - 1;
            if (index == pushed_.size()) {
                others.push_back(top);
            } else {
                pushed_.resize(index);  // other code has popped those above it
            }
            pop_();
        }
        pushed_.clear();
        for (; !others.empty(); others.pop_back()) push_(others.back()[0], others.back()[1]);
    }

    template <typename Visit>
    int visit(Visit each) const {
        for (const Pushed& one : pushed_) {
            if (int result = each(one.pack.ptr())) return result;
        }
        return 0;
    }
    void forget() { pushed_.clear(); }

  private:
    struct Pushed {
        nb::object pack;
        unsigned long thread;
    };

    nb::object push_, pop_, top_;
    std::vector<Pushed> pushed_;

    // Each thread has its own stack of hooks: those of other threads cannot be popped here.
    void forget_other_threads() {
        const unsigned long thread = PyThread_get_thread_ident();
        pushed_.erase(std::remove_if(pushed_.begin(), pushed_.end(),
                                     [thread](const Pushed& one) { return one.thread != thread; }),
                      pushed_.end());
    }

    size_t index_of(nb::handle pack) const {
        size_t place = pushed_.size();
        while (place > 0 && !pushed_[place - 1].pack.is(pack)) --place;
        return place > 0 ? place - 1 : pushed_.size();
    }
};

// For Python's cycle collector: the hooks may refer to the owner of this object.
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    return nb::inst_ptr<PushedHooks>(self)->visit([&](PyObject* one) { return visit(one, arg); });
}

int clear(PyObject* self) {
    if (nb::inst_ready(self)) nb::inst_ptr<PushedHooks>(self)->forget();
    return 0;
}

PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

}  // namespace

void bind_hooks(nb::module_& module) {
    nb::class_<PushedHooks>(module, "PushedHooks", nb::type_slots(slots),
                            "Pushes and pops torch's saved-tensor hooks and keeps a record of them.")
        .def(nb::init<nb::object, nb::object, nb::object>(), "push"_a, "pop"_a, "top"_a.none())
        .def("push", &PushedHooks::push, "pack"_a, "unpack"_a, "Push these hooks.")
        .def("pop", &PushedHooks::pop, "Pop the last of these hooks; IndexError if there are none.")
        .def("pop_all", &PushedHooks::pop_all,
             "Pop all hooks that this object pushed in this thread; other hooks stay.");
}

}  // namespace fastio
