#include <nanobind/nanobind.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// Knows the hooks that it has torch push and pop, in one call each: no signal is heard in between.
class PushedHooks {
  public:
    // `top` gives the pack and unpack that are on top in this thread, or None; itself None where torch does not tell.
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

    // Only ours: some time after an interrupt, somebody else's may lie above them, or ours may be gone already.
    void pop_all() {
        forget_other_threads();
        std::vector<nb::object> others;
        while (!pushed_.empty()) {
            nb::object top = top_.is_none() ? nb::object() : top_(true);
            if (top.is_valid() && top.is_none()) break;
            const size_t ours = top.is_valid() ? index_of(top[0]) : pushed_.size() - 1;
            if (ours == pushed_.size()) {
                others.push_back(top);
            } else {
                pushed_.resize(ours);  // those that were above it, somebody else has popped
            }
            pop_();
        }
        pushed_.clear();
        for (; !others.empty(); others.pop_back()) push_(others.back()[0], others.back()[1]);
    }

    template <typename Visit>
    int visit(Visit each) const {
        for (const Pushed& one : pushed_) {
            if (int told = each(one.pack.ptr())) return told;
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

    // Each thread has its own: what another one left behind is not within reach.
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

// The hooks hold whoever holds this.
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
                            "Knows the hooks that ``push`` and ``pop`` put in force and end.")
        .def(nb::init<nb::object, nb::object, nb::object>(), "push"_a, "pop"_a, "top"_a.none())
        .def("push", &PushedHooks::push, "pack"_a, "unpack"_a, "Have these hooks on top.")
        .def("pop", &PushedHooks::pop, "No more of the last of them; IndexError where there are none.")
        .def("pop_all", &PushedHooks::pop_all, "No more of any that this thread has; other hooks stay.");
}

}  // namespace fastio
