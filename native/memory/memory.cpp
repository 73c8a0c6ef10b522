#include "memory/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <mutex>
#include <vector>

#include "memory/populate.hpp"
#include "support/errors.hpp"
#include "support/fork_safe_singleton.hpp"

namespace fastio {

namespace {

// Returning less memory than this is not worth a system call.
constexpr uint64_t kMinReturnedBytes = 64 << 10;

// Staging memory kept between calls: enough for one large transfer or a few small ones, and a negligible amount.
constexpr uint64_t kCachedStagingBytes = 32 << 20;

struct StagingCache {
    std::mutex mutex;
    std::vector<std::unique_ptr<Mapping>> free;
    uint64_t nbytes = 0;
};

// The most recently released regions. malloc, too, keeps this many bytes for reuse.
constexpr uint64_t kCachedBytes = 32 << 20;
constexpr size_t kCachedRegions = 64;

struct RegionCache {
    std::mutex mutex;
    std::vector<Region> regions;
    uint64_t nbytes = 0;

    RegionCache() { regions.reserve(kCachedRegions + 1); }  // so that ~Mapping() allocates nothing
};

// Takes the most recent region of at least `nbytes` and at most twice that. Returns false if there is none.
bool take_recycled(uint64_t nbytes, Region& taken) {
    RegionCache& kept = fork_safe_singleton<RegionCache>();
    std::lock_guard<std::mutex> lock(kept.mutex);
    for (auto it = kept.regions.rbegin(); it != kept.regions.rend(); ++it) {
        if (it->nbytes < nbytes || it->nbytes > 2 * nbytes) continue;
        taken = *it;
        kept.nbytes -= taken.nbytes;
        kept.regions.erase(std::next(it).base());
        return true;
    }
    return false;
}

// Keeps the region for reuse and unmaps the oldest ones beyond the limits. Returns false if it is too large.
bool keep_region(const Region& region) {
    if (region.nbytes > kCachedBytes) return false;
    RegionCache& kept = fork_safe_singleton<RegionCache>();
    std::lock_guard<std::mutex> lock(kept.mutex);
    kept.regions.push_back(region);
    kept.nbytes += region.nbytes;
    while (kept.nbytes > kCachedBytes || kept.regions.size() > kCachedRegions) {
        const Region& oldest = kept.regions.front();
        munmap(oldest.base, oldest.reserved);
        kept.nbytes -= oldest.nbytes;
        kept.regions.erase(kept.regions.begin());
    }
    return true;
}

// Rounds up to whole huge pages if that adds at most a third: one costs as much as 30 pages of 4 KiB.
uint64_t generous_size(uint64_t nbytes) {
    uint64_t huge = round_up(nbytes, kHugePage);
    return huge - nbytes <= nbytes / 3 ? huge : nbytes;
}

Region map(uint64_t nbytes, Pages pages) {
    uint64_t alignment = nbytes >= kHugePage ? kHugePage : kPage;
    Region made{nullptr, nbytes + alignment - kPage, nullptr, nbytes};
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (pages == Pages::kReserved ? 0 : MAP_NORESERVE);
    made.base = mmap(nullptr, made.reserved, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (made.base == MAP_FAILED) throw SystemError(errno, "mmap of " + std::to_string(nbytes) + " bytes", 0);
    made.data = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(made.base), alignment));
    // The result is ignored: without huge pages everything works, but slower.
    if (alignment == kHugePage) madvise(made.data, nbytes, MADV_HUGEPAGE);
    return made;
}

}  // namespace

Mapping::Mapping(uint64_t nbytes, Pages pages) : pages_(pages) {
    uint64_t wanted = round_up(nbytes == 0 ? 1 : nbytes, kPage);
    if (pages == Pages::kRecycled) wanted = generous_size(wanted);
    if (pages == Pages::kRecycled && take_recycled(wanted, region_)) return;
    region_ = map(wanted, pages);
}

void Mapping::keep_from_children() {
    if (madvise(region_.base, region_.reserved, MADV_DONTFORK) != 0) {
        throw SystemError(errno, "madvise(MADV_DONTFORK)", 0);
    }
    owner_ = getpid();
}

Mapping::~Mapping() {
    if (owner_ != 0) {
        // A forked child may have other memory at this address.
        if (owner_ == getpid()) munmap(region_.base, region_.reserved);
        return;
    }
    if (pages_ == Pages::kRecycled && !has_holes_ && keep_region(region_)) return;
    munmap(region_.base, region_.reserved);
}

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
    bool is_last = mapping_->slices().fetch_sub(1) == 1;  // ~Mapping() then releases everything
    bool is_here = mapping_->owner_ == 0 || mapping_->owner_ == getpid();
    if (is_here && !is_last && end > begin && end - begin >= kMinReturnedBytes) {
        madvise(mapping_->data() + begin, end - begin, MADV_DONTNEED);
        mapping_->has_holes_ = true;
    }
}

Staging::Staging(uint64_t nbytes, uint64_t alignment) {
    if (alignment > kPage) nbytes = std::max(nbytes, kHugePage);  // smaller mappings are aligned to a page only
    {
        StagingCache& kept = fork_safe_singleton<StagingCache>();
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
    StagingCache& kept = fork_safe_singleton<StagingCache>();
    std::lock_guard<std::mutex> lock(kept.mutex);
    if (kept.nbytes + mapping_->nbytes() > kCachedStagingBytes) return;
    kept.nbytes += mapping_->nbytes();
    kept.free.push_back(std::move(mapping_));
}

}  // namespace fastio
