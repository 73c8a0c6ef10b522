// Faulting memory in before it is used, in huge pages unless these are dear just now.
#pragma once

#include <cstdint>

namespace fastio {

// Fault in [address, address + nbytes) for writing, now, in one call. Where the kernel cannot, first touch does it.
//
// On a virtual machine whose host takes idle free memory back (free page reporting, ballooning) it takes back what is
// free in large pieces, which is what huge pages are made of. One then costs 5 ms instead of 0.2, and as much memory in
// small pages, which are made of the remains, 0.9. So after a huge page that was dear small ones are taken for a while,
// the longer the oftener that happens in a row.
void populate(uint8_t* address, uint64_t nbytes) noexcept;

// Whether all of it was faulted in before. Asks the kernel of every page: for some megabytes.
bool is_populated(const uint8_t* address, uint64_t nbytes);

// Which pages to take next. Pure.
class PageChoice {
  public:
    bool small() const { return small_left_ > 0; }
    // So many bytes of the pages chosen took so many seconds of the processor.
    void record(uint64_t nbytes, double seconds);

  private:
    static constexpr uint64_t kMinInterval = 16 << 20, kMaxInterval = 256 << 20;

    uint64_t small_left_ = 0;           // bytes of small pages still to take before a huge one is tried again
    uint64_t interval_ = kMinInterval;  // and the next time
};

}  // namespace fastio
