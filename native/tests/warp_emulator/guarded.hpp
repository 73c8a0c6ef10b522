// Memory whose bounds are enforced: at one end an inaccessible page follows. The bytes between the other end and the
// next inaccessible page must keep their values; under AddressSanitizer they are inaccessible too.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "tests/support/check.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, nbytes)
#define ASAN_UNPOISON_MEMORY_REGION(address, nbytes)
#endif

namespace warp_emulator {

enum class Against { BEGIN, END };  // the end that touches the inaccessible page

class Guarded {
  public:
    // The address is `shift` bytes past a multiple of `alignment`: as near to the page as that allows.
    Guarded(size_t nbytes, Against against, size_t shift = 0, size_t alignment = 1) : nbytes_(nbytes) {
        inside_ = (nbytes + shift + alignment) / PAGE * PAGE + 2 * PAGE;
        void* mapped = mmap(nullptr, inside_ + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(mapped != MAP_FAILED, "mmap of %zu bytes", inside_ + 2 * GUARD);
        base_ = static_cast<uint8_t*>(mapped) + GUARD;
        CHECK(mprotect(base_, inside_, PROT_READ | PROT_WRITE) == 0, "mprotect");
        const size_t last = inside_ - nbytes - shift;
        data_ = base_ + shift + (against == Against::BEGIN ? 0 : last / alignment * alignment);
        std::memset(base_, CANARY, inside_);
        ASAN_POISON_MEMORY_REGION(base_, before());
        ASAN_POISON_MEMORY_REGION(data_ + nbytes_, after());
    }

    ~Guarded() {
        ASAN_UNPOISON_MEMORY_REGION(base_, inside_);
        for (const uint8_t* byte = base_; byte < base_ + inside_; ++byte) {
            const bool ours = byte >= data_ && byte < data_ + nbytes_;
            CHECK(ours || *byte == CANARY, "a write out of bounds: byte %td of %zu", byte - data_, nbytes_);
        }
        munmap(base_ - GUARD, inside_ + 2 * GUARD);
    }

    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    uint8_t* data() const { return data_; }
    size_t size() const { return nbytes_; }

    template <typename T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }

  private:
    static constexpr size_t PAGE = 4096;
    static constexpr size_t GUARD = 1 << 20;
    static constexpr uint8_t CANARY = 0xC7;

    size_t before() const { return static_cast<size_t>(data_ - base_); }
    size_t after() const { return inside_ - before() - nbytes_; }

    size_t nbytes_, inside_;
    uint8_t *base_, *data_;
};

}  // namespace warp_emulator
