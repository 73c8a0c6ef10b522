// Memory of our own: staging buffers that outlive a call, and huge-page mappings that tensors live in.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace fastio {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2 << 20;

constexpr uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// A piece of the address space that was mapped.
struct Region {
    void* base = nullptr;
    uint64_t reserved = 0;
    uint8_t* data = nullptr;
    uint64_t nbytes = 0;
};

// What the memory of a mapping is: fresh pages, which are zero, and no more of them than asked for; or what is soonest
// there: pages of one that died before, which hold what they held (a fresh page of 4 KiB costs as much as reading ten
// from the page cache, a fresh huge one 0.2 ms, two thirds of reading it), or else whole huge pages.
enum class Pages : uint8_t { kFresh, kRecycled };

// Anonymous memory, aligned to a huge page and backed by huge pages where the kernel has them. Throws SystemError.
class Mapping {
  public:
    explicit Mapping(uint64_t nbytes, Pages pages = Pages::kFresh);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    uint8_t* data() const { return region_.data; }
    uint64_t nbytes() const { return region_.nbytes; }
    // How many slices are alive. (A shared_ptr's own count does not tell: each one made from Python counts alone.)
    std::atomic<size_t>& slices() { return slices_; }

  private:
    friend class Slice;
    std::atomic<size_t> slices_{0};
    std::atomic<bool> has_holes_{false};  // pages went back to the system
    Pages pages_;
    Region region_;
};

// A part of a mapping, which it keeps alive. When it dies, the pages that are wholly its own go back to the system.
class Slice {
  public:
    Slice(std::shared_ptr<Mapping> mapping, uint64_t offset, uint64_t nbytes);
    ~Slice();
    Slice(const Slice&) = delete;
    Slice& operator=(const Slice&) = delete;

    uint8_t* data() const { return mapping_->data() + offset_; }
    uint64_t nbytes() const { return nbytes_; }

  private:
    std::shared_ptr<Mapping> mapping_;
    uint64_t offset_;
    uint64_t nbytes_;
};

// A staging buffer on loan. Making one costs page faults, so a few are kept for the next call.
class Staging {
  public:
    // Aligned to `alignment`, a power of 2 up to a huge page.
    explicit Staging(uint64_t nbytes, uint64_t alignment = kPage);
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    uint8_t* data() const { return mapping_->data(); }

  private:
    std::unique_ptr<Mapping> mapping_;
};

}  // namespace fastio
