// Checks that an NVMe controller is unused before it is taken from the kernel. This is the last check:
// fastio/nvme/safety.py checks earlier, and looks at disk contents, too.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fastio {

// Exclusive opens (O_EXCL) of block devices. While they exist, the devices cannot be mounted, swapped to or built on.
class ExclusiveOpens {
  public:
    ExclusiveOpens() = default;
    ~ExclusiveOpens();
    ExclusiveOpens(const ExclusiveOpens&) = delete;
    ExclusiveOpens& operator=(const ExclusiveOpens&) = delete;
    void add(int fd) { fds_.push_back(fd); }
    size_t size() const { return fds_.size(); }

  private:
    std::vector<int> fds_;
};

// Returns why this NVMe controller is in use: one of its namespaces, or a partition, is mounted, swapped to, built on
// or exclusively open. "" if it is unused; `held` then keeps it unused. `root` is "" except in tests.
std::string namespace_in_use(const std::string& pci, ExclusiveOpens& held, const std::string& root = "");

// Returns the processes that have a file open, as far as visible here: "process 12 (python)"; "" if none is visible.
std::string processes_with(const std::string& path);

}  // namespace fastio
