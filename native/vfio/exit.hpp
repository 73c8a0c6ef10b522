// What is left to do for those that nobody has closed when the process ends.
#pragma once

#include <functional>

namespace fastio {

// While it lives, `leave` is called when the process exits; never in a child of fork, whose parent's it is. Nothing is
// called in a process that is killed: there the kernel stops and resets the devices as it closes their descriptors.
class LeaveAtExit {
  public:
    explicit LeaveAtExit(std::function<void()> leave);
    ~LeaveAtExit();
    LeaveAtExit(const LeaveAtExit&) = delete;
    LeaveAtExit& operator=(const LeaveAtExit&) = delete;

  private:
    std::function<void()> leave_;
    long owner_;  // the process

    friend struct LeavingList;
};

}  // namespace fastio
