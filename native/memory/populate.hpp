// Faults memory in before it is used, in huge pages unless they are slow at present.
#pragma once

#include <cstdint>

namespace fastio {

// Faults in [address, address + nbytes) for writing, in one call. If the kernel cannot, first touch does it later.
//
// The host of a virtual machine may take idle free memory back (free page reporting, ballooning). It takes large free
// pieces, which huge pages are made of. A huge page then costs 5 ms instead of 0.2; the same amount of small pages,
// which come from the smaller pieces, costs 0.9 ms. So after a slow huge page, small pages are used for a while, and
// longer each time that happens in a row.
void populate(uint8_t* address, uint64_t nbytes) noexcept;

// The same with several threads, one for each 32 MiB, up to the number of processors.
void populate_in_threads(uint8_t* address, uint64_t nbytes) noexcept;

// Whether all pages of the memory are faulted in. It asks the kernel about each page: use it for a few megabytes only.
bool is_populated(const uint8_t* address, uint64_t nbytes);

// Decides which pages to use next. It does no I/O and reads no clock.
class PageChoice {
  public:
    // Whether to use small pages next.
    bool small() const { return small_left_ > 0; }
    // Records that faulting in `nbytes` of the chosen pages took `seconds` of CPU time.
    void record(uint64_t nbytes, double seconds);

  private:
    static constexpr uint64_t kMinInterval = 16 << 20, kMaxInterval = 256 << 20;

    uint64_t small_left_ = 0;           // bytes of small pages to use before a huge one is tried again
    uint64_t interval_ = kMinInterval;  // its value after the next slow huge page
};

}  // namespace fastio
