// Calls cleanup functions of objects that still exist when the process exits.
#pragma once

#include <functional>

namespace fastio {

// While this object exists, `leave` is called at process exit, except in a forked child. It is not called if the
// process is killed: the kernel then stops and resets the devices as it closes their descriptors.
class LeaveAtExit {
  public:
    explicit LeaveAtExit(std::function<void()> leave);
    ~LeaveAtExit();
    LeaveAtExit(const LeaveAtExit&) = delete;
    LeaveAtExit& operator=(const LeaveAtExit&) = delete;

  private:
    std::function<void()> leave_;
    long owner_;  // the process id

    friend struct ExitList;
};

}  // namespace fastio
