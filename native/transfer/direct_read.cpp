#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>

#include "support/errors.hpp"
#include "support/thread_affinity.hpp"
#include "transfer/direct.hpp"
#include "transfer/direct_reader.hpp"

namespace fastio {

namespace {

// From here on it pays to have two threads, and to find out whether to stage.
constexpr uint64_t kLarge = 32 << 20;

uint64_t wanted(const Extents& extents, const Span& span) {
    if (span.address != nullptr) return span.nbytes;
    uint64_t nbytes = 0;
    for (const Extent& extent : extents.all()) nbytes += extent.nbytes;
    return nbytes;
}

// Faulting memory in, copying and checksums take a processor as long as a fast disk takes to read: two readers, one of
// them on a thread of its own, keep it busy. Blocks finish in any order: their checksums are kept apart and joined in
// file order at the end.
struct Readers {
    Reading reading;
    std::unique_ptr<DirectReader> mine, other;
    std::exception_ptr failure;  // the other's
    std::thread thread;

    Readers(int fd, uint64_t size, Extents&& all, const Span& span, const DirectOptions& options, Control& control)
        : reading(fd, size, std::move(all), span, options, control) {
        const bool is_large = wanted(reading.extents, span) >= kLarge;
        const unsigned depth = is_large ? std::min(options.depth, 16u) : options.depth;
        mine = std::make_unique<DirectReader>(reading, depth);
        struct stat file;
        if (!is_large || fstat(fd, &file) != 0) return;
        reading.choice = &SharedStagingChoice::of(file.st_dev);
        reading.choice->begin();
        try {
            thread = std::thread([this, depth] { read(depth); });
            move_apart(thread);
        } catch (const std::system_error&) {
            return;  // the system has no more: one reader does it all
        }
    }

    ~Readers() {
        reading.stop(0);
        if (thread.joinable()) thread.join();
    }

    void read(unsigned depth) noexcept {
        try {
            other = std::make_unique<DirectReader>(reading, depth);
        } catch (...) {
            return;  // no second engine: it has taken nothing yet
        }
        try {
            other->run();
        } catch (...) {
            failure = std::current_exception();
        }
    }

    void run() {
        std::exception_ptr mine_failed;
        try {
            mine->run();
        } catch (...) {
            mine_failed = std::current_exception();
        }
        if (thread.joinable()) thread.join();
        if (mine_failed && (!failure || place_of(mine_failed) <= place_of(failure)))
            std::rethrow_exception(mine_failed);
        if (failure) std::rethrow_exception(failure);
    }

    std::vector<uint32_t> checksums() {
        auto all = std::move(mine->parts());
        if (other != nullptr) std::move(other->parts().begin(), other->parts().end(), std::back_inserter(all));
        std::sort(all.begin(), all.end(), [](const auto& one, const auto& two) { return one.first < two.first; });
        Checksums found(reading.extents.all().size());
        for (const auto& [offset, parts] : all) found.add(parts);
        return found.values();
    }
};

}  // namespace

std::vector<uint32_t> direct_read(int fd, uint64_t size, Extents extents, const Span& span,
                                  const DirectOptions& options, Control& control) {
    Readers readers(fd, size, std::move(extents), span, options, control);
    readers.run();
    return readers.checksums();
}

}  // namespace fastio
