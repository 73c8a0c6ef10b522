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

// From this size on, a second thread pays off, and so does staging on a virtual disk.
constexpr uint64_t kLarge = 32 << 20;

uint64_t wanted_nbytes(const Extents& extents, const Span& span) {
    if (span.address != nullptr) return span.nbytes;
    uint64_t nbytes = 0;
    for (const Extent& extent : extents.all()) nbytes += extent.nbytes;
    return nbytes;
}

// Two readers, the second on its own thread. Faulting memory in, copying and checksums take one processor as long as a
// fast disk takes to read; two keep the disk busy. Blocks finish in any order, so their checksums are combined in file
// order at the end.
struct Readers {
    ReadState state;
    std::unique_ptr<DirectReader> own, other;
    std::exception_ptr failure;  // of `other`
    std::thread thread;

    Readers(int fd, uint64_t size, Extents&& all, const Span& span, const DirectOptions& options, Control& control)
        : state(fd, size, std::move(all), span, options, control) {
        const bool is_large = wanted_nbytes(state.extents, span) >= kLarge;
        const unsigned depth = is_large ? std::min(options.depth, 16u) : options.depth;
        own = std::make_unique<DirectReader>(state, depth);
        if (!is_large) return;
        state.stages_all = options.staged;
        try {
            thread = std::thread([this, depth] { read(depth); });
            move_to_another_cpu(thread);
        } catch (const std::system_error&) {
            return;  // no thread available: one reader does all the work
        }
    }

    ~Readers() {
        state.stop(0);
        if (thread.joinable()) thread.join();
    }

    void read(unsigned depth) noexcept {
        try {
            other = std::make_unique<DirectReader>(state, depth);
        } catch (...) {
            return;  // no second engine: this reader has taken no block yet
        }
        try {
            other->run();
        } catch (...) {
            failure = std::current_exception();
        }
    }

    void run() {
        std::exception_ptr own_failure;
        try {
            own->run();
        } catch (...) {
            own_failure = std::current_exception();
        }
        if (thread.joinable()) thread.join();
        if (own_failure && (!failure || offset_of(own_failure) <= offset_of(failure)))
            std::rethrow_exception(own_failure);
        if (failure) std::rethrow_exception(failure);
    }

    std::vector<uint32_t> checksums() {
        auto all = std::move(own->parts());
        if (other != nullptr) std::move(other->parts().begin(), other->parts().end(), std::back_inserter(all));
        std::sort(all.begin(), all.end(), [](const auto& one, const auto& two) { return one.first < two.first; });
        Checksums found(state.extents.all().size());
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
