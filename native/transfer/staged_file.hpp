// A file as staged transfers use it: complete reads and writes of windows.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace fastio {

// Thread-safe. `page` is the memory of the page of the file that holds `begin`; it is aligned to a page.
class StagedFile {
  public:
    virtual ~StagedFile() = default;
    // Reads [begin, end) of the file, and perhaps the rest of its pages. Calls `filled(from, to)` for each part of the
    // range, in order, when it has been read. Throws SystemError, Truncated.
    virtual void read(uint8_t* page, uint64_t begin, uint64_t end,
                      const std::function<void(uint64_t, uint64_t)>& filled) = 0;
    // Writes [begin, end); `begin` is a multiple of the page. Throws SystemError.
    virtual void write(const uint8_t* page, uint64_t begin, uint64_t end) = 0;
};

// An open file: by its descriptor `direct`, which has O_DIRECT, unless that is negative; else by `fd`, through the page
// cache. So goes what is not whole pages, and everything once O_DIRECT is refused (EINVAL).
class OpenFile : public StagedFile {
  public:
    OpenFile(int fd, int direct) : fd_(fd), direct_(direct) {}

    void read(uint8_t* page, uint64_t begin, uint64_t end,
              const std::function<void(uint64_t, uint64_t)>& filled) override;
    void write(const uint8_t* page, uint64_t begin, uint64_t end) override;
    // Whether a read or write with O_DIRECT was refused.
    bool was_refused() const { return direct_ == kRefused; }

  private:
    static constexpr int kRefused = -2;

    int fd_;
    std::atomic<int> direct_;
};

}  // namespace fastio
