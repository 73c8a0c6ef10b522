#include "spdk/environment.hpp"

#ifdef FASTIO_SPDK

#include <sched.h>
#include <spdk/env.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "memory/memory.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

constexpr int kMemoryMiB = 64;  // SPDK's memory for queues and requests without huge pages

enum class State { kNotYet, kFabrics, kAll };

std::mutex environment_lock;
State state = State::kNotYet;

// Restores the calling thread's CPU affinity. Starting SPDK binds the thread to one CPU, and threads that torch starts
// from it later would inherit that.
class AffinityGuard {
  public:
    AffinityGuard() : known_(sched_getaffinity(0, sizeof(set_), &set_) == 0) {}
    ~AffinityGuard() {
        if (known_) sched_setaffinity(0, sizeof(set_), &set_);
    }
    AffinityGuard(const AffinityGuard&) = delete;
    AffinityGuard& operator=(const AffinityGuard&) = delete;

    // Returns a CPU that this thread may use. SPDK's default, the first CPU of the machine, may be forbidden.
    int any() const {
        for (int processor = 0; known_ && processor < CPU_SETSIZE; ++processor) {
            if (CPU_ISSET(processor, &set_)) return processor;
        }
        return 0;
    }

  private:
    cpu_set_t set_;
    bool known_;
};

// Newer SPDK versions need the size of the structure; older ones lack the member.
template <typename Options>
auto set_size(Options& options, int) -> decltype(options.opts_size, void()) {
    options.opts_size = sizeof(options);
}

template <typename Options>
void set_size(Options&, long) {}

}  // namespace

std::string why_no_spdk() { return {}; }

void start_spdk(bool pci) {
    std::lock_guard<std::mutex> lock(environment_lock);
    if (state == State::kAll || (state == State::kFabrics && !pci)) return;
    if (state == State::kFabrics) {
        throw Refused(
            "this process has started SPDK for fabrics only, and SPDK can start only once: open the PCIe store first");
    }
    AffinityGuard affinity;
    std::string processors = "[" + std::to_string(affinity.any()) + "]";
    spdk_env_opts options;
    std::memset(&options, 0, sizeof(options));
    set_size(options, 0);
    spdk_env_opts_init(&options);
    options.name = "fastio";
    options.core_mask = processors.c_str();
    if (!pci) {
        options.no_pci = true;
        options.no_huge = true;
        options.mem_size = kMemoryMiB;
    }
    int failed = spdk_env_init(&options);
    if (failed != 0 && failed != -EALREADY) {
        throw Refused(std::string("SPDK's environment failed to start (") + std::strerror(-failed) + ")" +
                      (pci ? "; it needs free huge pages and vfio-pci: see `fastio-bench doctor`" : ""));
    }
    if (pci && !spdk_iommu_is_enabled()) {
        throw Refused(
            "SPDK has no IOMMU here, and pages of tensors may move while a device accesses them by physical address: "
            "enable the IOMMU and bind the device to vfio-pci, see `fastio-bench doctor`");
    }
    state = pci ? State::kAll : State::kFabrics;
}

SpdkMemory::SpdkMemory(uint8_t* memory, uint64_t nbytes) {
    auto begin = round_up(reinterpret_cast<uintptr_t>(memory), kHugePage);
    auto end = (reinterpret_cast<uintptr_t>(memory) + nbytes) / kHugePage * kHugePage;
    if (end <= begin) throw Refused("there is no whole aligned 2 MiB piece in it");
    first_ = reinterpret_cast<uint8_t*>(begin);
    nbytes_ = end - begin;
    int failed = spdk_mem_register(first_, nbytes_);
    if (failed != 0) throw Refused(std::string("spdk_mem_register: ") + std::strerror(-failed));
}

SpdkMemory::SpdkMemory(SpdkMemory&& other) noexcept : first_(other.first_), nbytes_(other.nbytes_) {
    other.nbytes_ = 0;
}

SpdkMemory::~SpdkMemory() {
    // The result is ignored: it fails only for memory that is not registered.
    if (nbytes_ > 0) static_cast<void>(spdk_mem_unregister(first_, nbytes_));
}

bool SpdkMemory::holds(const uint8_t* memory, uint64_t nbytes) const {
    return memory >= first_ && memory + nbytes <= first_ + nbytes_;
}

}  // namespace fastio

#else

namespace fastio {

std::string why_no_spdk() {
    return "this build has no SPDK: install SPDK 24.01 or newer from spdk.io (./configure --with-shared, "
           "make install), see that `pkg-config --exists spdk_nvme spdk_env_dpdk spdk_sock_modules` succeeds, "
           "and rebuild with "
           "`pip install . -C cmake.define.FASTIO_SPDK=ON`";
}

}  // namespace fastio

#endif
