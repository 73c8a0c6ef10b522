#include "memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <mutex>
#include <vector>

#include "errors.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace fastio {

namespace {

// Slices below this are not worth a system call when they die.
constexpr uint64_t kSmallestReturn = 64 << 10;

// Staging kept between calls: enough for one large transfer or a few small ones, little enough to forget about.
constexpr uint64_t kKeptBytes = 32 << 20;

struct Shelf {
    std::mutex mutex;
    std::vector<std::unique_ptr<Mapping>> free;
    uint64_t nbytes = 0;
};

Shelf& shelf() {
    static Shelf* instance = new Shelf;  // never destroyed: a thread may still return a buffer at exit
    return *instance;
}

}  // namespace

void populate(uint8_t* address, uint64_t nbytes) noexcept {
    uint64_t begin = reinterpret_cast<uintptr_t>(address) / kPage * kPage;
    uint64_t end = round_up(reinterpret_cast<uintptr_t>(address) + nbytes, kPage);
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
}

Mapping::Mapping(uint64_t nbytes) : nbytes_(round_up(nbytes == 0 ? 1 : nbytes, kPage)) {
    uint64_t alignment = nbytes_ >= kHugePage ? kHugePage : kPage;
    reserved_ = nbytes_ + alignment - kPage;
    base_ = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) throw SystemError(errno, "mmap of " + std::to_string(nbytes_) + " bytes", 0);
    data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(base_), alignment));
    // Advice only: without huge pages everything works, slower.
    if (alignment == kHugePage) madvise(data_, nbytes_, MADV_HUGEPAGE);
}

Mapping::~Mapping() { munmap(base_, reserved_); }

Slice::Slice(std::shared_ptr<Mapping> mapping, uint64_t offset, uint64_t nbytes)
    : mapping_(std::move(mapping)), offset_(offset), nbytes_(nbytes) {
    if (offset > mapping_->nbytes() || nbytes > mapping_->nbytes() - offset) {
        throw Refused("a slice must lie inside its mapping");
    }
    mapping_->slices().fetch_add(1);
}

Slice::~Slice() {
    uint64_t begin = round_up(offset_, kPage);
    uint64_t end = (offset_ + nbytes_) / kPage * kPage;
    bool is_last = mapping_->slices().fetch_sub(1) == 1;  // then the whole mapping goes
    if (!is_last && end > begin && end - begin >= kSmallestReturn) {
        madvise(mapping_->data() + begin, end - begin, MADV_DONTNEED);
    }
}

Staging::Staging(uint64_t nbytes) {
    {
        Shelf& kept = shelf();
        std::lock_guard<std::mutex> lock(kept.mutex);
        for (auto it = kept.free.begin(); it != kept.free.end(); ++it) {
            if ((*it)->nbytes() >= nbytes && (*it)->nbytes() <= 4 * nbytes) {
                mapping_ = std::move(*it);
                kept.nbytes -= mapping_->nbytes();
                kept.free.erase(it);
                return;
            }
        }
    }
    mapping_ = std::make_unique<Mapping>(nbytes);
    populate(mapping_->data(), mapping_->nbytes());
}

Staging::~Staging() {
    Shelf& kept = shelf();
    std::lock_guard<std::mutex> lock(kept.mutex);
    if (kept.nbytes + mapping_->nbytes() > kKeptBytes) return;
    kept.nbytes += mapping_->nbytes();
    kept.free.push_back(std::move(mapping_));
}

}  // namespace fastio
