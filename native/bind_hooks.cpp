#include <nanobind/nanobind.h>

#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// Counts the hooks that it has torch push and pop, in one call each: no signal is heard in between.
class PushedHooks {
  public:
    PushedHooks(nb::object push, nb::object pop) : push_(std::move(push)), pop_(std::move(pop)) {}

    void push(nb::handle pack, nb::handle unpack) {
        push_(pack, unpack);
        ++pushed_;
    }

    void pop() {
        if (pushed_ == 0) throw nb::index_error("no hooks are pushed");
        pop_();
        --pushed_;
    }

    void pop_all() {
        while (pushed_ > 0) pop();
    }

  private:
    nb::object push_, pop_;
    long pushed_ = 0;
};

}  // namespace

void bind_hooks(nb::module_& module) {
    nb::class_<PushedHooks>(module, "PushedHooks", "Counts the hooks that ``push`` and ``pop`` put in force and end.")
        .def(nb::init<nb::object, nb::object>(), "push"_a, "pop"_a)
        .def("push", &PushedHooks::push, "pack"_a, "unpack"_a, "Have these hooks on top.")
        .def("pop", &PushedHooks::pop, "No more of the last of them; IndexError where there are none.")
        .def("pop_all", &PushedHooks::pop_all, "No more of any.");
}

}  // namespace fastio
