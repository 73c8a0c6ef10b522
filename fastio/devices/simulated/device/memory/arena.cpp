#include "memory/arena.hpp"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace simulated {

namespace {

uintptr_t map_all(int file, int protection) {
    void* mapping = mmap(nullptr, Arena::kBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(mapping != MAP_FAILED, "cannot map the simulated device's memory");
    madvise(mapping, Arena::kBytes, MADV_DONTFORK);
    return reinterpret_cast<uintptr_t>(mapping);
}

}  // namespace

Arena::Arena() : file_(memfd_create("simulated-device", MFD_CLOEXEC)) {
    TORCH_CHECK(file_ >= 0 && ftruncate(file_, kBytes) == 0, "cannot create the simulated device's memory");
    base_ = map_all(file_, PROT_NONE);
    device_base_ = map_all(file_, PROT_READ | PROT_WRITE);
    free_[base_] = kBytes;
}

uintptr_t Arena::reserve(size_t nbytes) {
    for (auto range = free_.begin(); range != free_.end(); ++range) {
        const auto [address, available] = *range;
        if (available < nbytes) continue;
        free_.erase(range);
        if (available > nbytes) free_[address + nbytes] = available - nbytes;
        return address;
    }
    return 0;
}

void Arena::release(uintptr_t address, size_t nbytes) {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(address - base_),
              static_cast<off_t>(nbytes));
    auto range = free_.emplace(address, nbytes).first;
    auto next = std::next(range);
    if (next != free_.end() && range->first + range->second == next->first) {
        range->second += next->second;
        free_.erase(next);
    }
    if (range != free_.begin()) {
        auto previous = std::prev(range);
        if (previous->first + previous->second == range->first) {
            previous->second += range->second;
            free_.erase(range);
        }
    }
}

void* Arena::open_window(uintptr_t address, size_t nbytes) const {
    void* window =
        mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, static_cast<off_t>(address - base_));
    return window == MAP_FAILED ? nullptr : window;
}

}  // namespace simulated
