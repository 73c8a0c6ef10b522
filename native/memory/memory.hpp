// Huge-page mappings, which tensors use, and staging buffers, which are kept between calls.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace fastio {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2 << 20;

constexpr uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// A mapped region: `base` and `reserved` are what mmap returned, `data` and `nbytes` the aligned part that is used.
struct Region {
    void* base = nullptr;
    uint64_t reserved = 0;
    uint8_t* data = nullptr;
    uint64_t nbytes = 0;
};

// kFresh: new pages, which are zero, and no more of them than asked for. kReserved: the same, and the system refuses at
// once obviously more than it has; of others it kills the process that touches too many. kRecycled: the fastest memory.
// That is the pages of a destroyed mapping, which hold old bytes, or else whole new huge pages. A fresh 4 KiB page
// costs as much as reading ten from the page cache; a fresh huge page costs 0.2 ms, two thirds of reading it.
enum class Pages : uint8_t { kFresh, kReserved, kRecycled };

// Anonymous memory, in huge pages if it is large enough and the kernel has them. Throws SystemError.
class Mapping {
  public:
    explicit Mapping(uint64_t nbytes, Pages pages = Pages::kFresh);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    uint8_t* data() const { return region_.data; }
    uint64_t nbytes() const { return region_.nbytes; }
    // Leaves the memory out of processes that are forked from now on (MADV_DONTFORK). fork() copies pages that are
    // pinned for a device or for io_uring at once, and here it copies none. A child that touches the address gets
    // SIGSEGV: use it only for memory that no child may read. Throws SystemError.
    void keep_from_children();
    // The number of slices that exist. A shared_ptr's count does not give it: each one made from Python has its own.
    std::atomic<size_t>& slices() { return slices_; }

  private:
    friend class Slice;
    std::atomic<size_t> slices_{0};
    std::atomic<bool> has_holes_{false};  // pages were returned to the system
    Pages pages_;
    Region region_;
    pid_t owner_ = 0;  // the only process that has the memory; 0 if its children have it too
};

// A part of a mapping, which it keeps alive. Its destructor returns the pages that lie entirely in it to the system.
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

// A staging buffer. Creating one costs page faults, so the destructor keeps a few for the next call.
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
