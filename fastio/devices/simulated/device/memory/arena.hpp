#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace simulated {

/// The memory of one device: pages of a memfd, mapped twice.
///
/// Tensors hold addresses of the first mapping, which nothing may access (PROT_NONE): a host that dereferences one gets
/// SIGSEGV. The device's threads work on the second mapping. A peer window is a third one, of some of the pages.
class Arena {
  public:
    static constexpr size_t kBytes = size_t{1} << 36;    // of addresses; pages exist once they are written
    static constexpr size_t kGranule = size_t{2} << 20;  // segments are multiples of this

    Arena();
    bool contains(uintptr_t address) const { return address >= base_ && address < base_ + kBytes; }

    /// The address at which the device's threads see what tensors have at `address`.
    uintptr_t on_device(uintptr_t address) const { return address - base_ + device_base_; }

    /// The address of `nbytes`, a multiple of kGranule, or 0 if no range is free.
    uintptr_t reserve(size_t nbytes);
    void release(uintptr_t address, size_t nbytes);

    /// A mapping of [address, address + nbytes) that the host may read and write; page-aligned. nullptr: mmap failed.
    void* open_window(uintptr_t address, size_t nbytes) const;

  private:
    int file_;
    uintptr_t base_;
    uintptr_t device_base_;
    std::map<uintptr_t, size_t> free_;
};

}  // namespace simulated
