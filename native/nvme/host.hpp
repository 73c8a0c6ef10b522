// What an NVMe controller stands on: its registers, and memory that it reaches. VFIO gives it, or a model in the tests.
#pragma once

#include <cstdint>

namespace fastio {

class NvmeHost {
  public:
    virtual ~NvmeHost() = default;

    // BAR 0: the registers, and from 4096 on the doorbells.
    virtual volatile uint8_t* registers() = 0;
    virtual uint64_t register_bytes() const = 0;
    // Let the controller reach whole pages of memory; gives its address for them. Throws Refused.
    virtual uint64_t map(uint8_t* memory, uint64_t nbytes) = 0;
    virtual void unmap(uint64_t address, uint64_t nbytes) noexcept = 0;
    // Whether the controller may reach any memory at all.
    virtual void set_bus_master(bool on) noexcept = 0;
    // Reset it from outside (PCI function level reset); whether that worked.
    virtual bool reset() noexcept = 0;

    virtual uint64_t now_ms() const = 0;
    // A moment's rest between two looks at the controller.
    virtual void pause() = 0;
};

}  // namespace fastio
