// The interface to a controller's registers and DMA memory. VFIO implements it, and a model in the tests.
#pragma once

#include <cstdint>

namespace fastio {

class NvmeHost {
  public:
    virtual ~NvmeHost() = default;

    // BAR 0: the registers, then from offset 4096 the doorbells.
    virtual volatile uint8_t* registers() = 0;
    virtual uint64_t register_bytes() const = 0;
    // Lets the controller access whole pages of memory. Returns their device address. Throws Refused.
    virtual uint64_t map(uint8_t* memory, uint64_t nbytes) = 0;
    virtual void unmap(uint64_t address, uint64_t nbytes) noexcept = 0;
    // Sets whether the controller may access any memory at all.
    virtual void set_bus_master(bool on) noexcept = 0;
    // Resets the controller from outside (PCI function level reset). Returns whether that worked.
    virtual bool reset() noexcept = 0;

    virtual uint64_t now_ms() const = 0;
    // Sleeps briefly between two polls.
    virtual void pause() = 0;
};

}  // namespace fastio
