// Who uses a PCI device that is about to be taken from the kernel. The last line of defence: fastio/nvme/safety.py has
// asked before, and looks at contents too.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fastio {

// Opens that keep others from mounting, swapping to or building on what they are of, for as long as this lives.
class Held {
  public:
    Held() = default;
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    void add(int fd) { fds_.push_back(fd); }
    size_t size() const { return fds_.size(); }

  private:
    std::vector<int> fds_;
};

// Why the kernel must not lose this NVMe controller: one of its namespaces is mounted, swapped to, built on or open
// for somebody alone, a partition of it included. "" where nothing is in the way; `held` keeps it so. `root`: "" but in
// tests.
std::string namespace_in_use(const std::string& pci, Held& held, const std::string& root = "");

// The processes that have a file open, as far as this one may see them: "process 12 (python)"; "" if none is seen.
std::string processes_with(const std::string& path);

}  // namespace fastio
