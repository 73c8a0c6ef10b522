#include "execution/machine.hpp"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>

namespace simulated {

namespace {

void before_fork() { machine().mutex.lock(); }
void in_parent() { machine().mutex.unlock(); }
void in_child() {
    machine().forked = true;
    machine().mutex.unlock();
}

}  // namespace

Machine& machine() {
    static Machine* const instance = [] {
        auto* made = new Machine;
        pthread_atfork(before_fork, in_parent, in_child);
        return made;
    }();
    return *instance;
}

double now() {
    static const auto start = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double time_of_call() {
    const Settings& settings = machine().settings;
    return settings.modelled ? machine().host_time += settings.call_seconds : now();
}

void count_wait(bool done, double time) {
    if (machine().settings.modelled ? time > machine().host_time : !done) ++machine().host_waits;
}

void host_waited_until(double time) { machine().host_time = std::max(machine().host_time, time); }

void check_process(const char* call) {
    TORCH_CHECK(!machine().forked, call,
                ": the simulated accelerator cannot be used in a forked child; start the child with 'spawn'");
}

void check(const char* call) {
    check_process(call);
    if (machine().error.empty()) return;
    machine().error_was_raised = true;
    TORCH_CHECK(false, machine().error, " (raised by ", call, ")");
}

void set_error(const std::string& message) {
    if (machine().error.empty()) machine().error = message;
}

}  // namespace simulated
