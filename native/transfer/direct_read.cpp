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

// A reader pays off for this much.
constexpr uint64_t kBytesPerReader = 16 << 20;

// From this size on, staging on a virtual disk pays off, and requests of this depth do, by all readers together.
constexpr uint64_t kLarge = 32 << 20;
constexpr unsigned kSharedDepth = 32, kLeastDepth = 4;

// Threads that only wait for the disk: that many for all readers together keep it busy, and with two a reader has one
// request in flight while it starts another.
constexpr unsigned kSharedThreads = 8, kLeastThreads = 2;

uint64_t wanted_nbytes(const Extents& extents, const Span& span) {
    if (span.address != nullptr) return span.nbytes;
    uint64_t nbytes = 0;
    for (const Extent& extent : extents.all()) nbytes += extent.nbytes;
    return nbytes;
}

// The options of each reader of a read of `nbytes`, and how many share it.
DirectOptions shared(DirectOptions options, uint64_t nbytes) {
    const uint64_t useful = std::max<uint64_t>(nbytes / kBytesPerReader, 1);
    const auto readers = static_cast<unsigned>(std::clamp<uint64_t>(options.readers, 1, useful));
    options.readers = readers;
    options.staged = options.staged && nbytes >= kLarge;
    if (nbytes < kLarge) return options;
    options.depth = std::min(options.depth, std::max(kSharedDepth / readers, kLeastDepth));
    options.threads = std::min(options.threads, std::max(kSharedThreads / readers, kLeastThreads));
    return options;
}

// Several readers, each but the first on its own thread. Faulting memory in, copying and checksums take one processor
// as long as a fast disk takes to read; several keep the disk busy. Blocks finish in any order, so their checksums are
// combined in file order at the end.
class Readers {
  public:
    // `options` are those of each reader.
    Readers(int fd, uint64_t size, Extents&& all, const Span& span, const DirectOptions& options, Control& control)
        : state_(fd, size, std::move(all), span, options, control), first_(state_), others_(options.readers - 1) {}

    ~Readers() {
        state_.stop(0);
        for (Reader& each : others_) {
            if (each.thread.joinable()) each.thread.join();
        }
    }

    void run() {
        for (Reader& each : others_) {
            try {
                each.thread = std::thread([this, &each] { read(each); });
                move_to_another_cpu(each.thread);
            } catch (const std::system_error&) {
                break;  // no thread available: fewer readers do the work
            }
        }
        std::exception_ptr failure;
        try {
            first_.run();
        } catch (...) {
            failure = std::current_exception();
        }
        for (Reader& each : others_) {
            if (each.thread.joinable()) each.thread.join();
            if (each.failure && (!failure || offset_of(each.failure) < offset_of(failure))) failure = each.failure;
        }
        if (failure) std::rethrow_exception(failure);
    }

    std::vector<uint32_t> checksums() {
        auto all = std::move(first_.parts());
        for (Reader& each : others_) {
            if (each.reader == nullptr) continue;
            std::move(each.reader->parts().begin(), each.reader->parts().end(), std::back_inserter(all));
        }
        std::sort(all.begin(), all.end(), [](const auto& one, const auto& two) { return one.first < two.first; });
        Checksums found(state_.extents.all().size());
        for (const auto& [offset, parts] : all) found.add(parts);
        return found.values();
    }

  private:
    struct Reader {
        std::unique_ptr<DirectReader> reader;
        std::exception_ptr failure;
        std::thread thread;
    };

    ReadState state_;
    DirectReader first_;
    std::vector<Reader> others_;

    void read(Reader& each) noexcept {
        try {
            each.reader = std::make_unique<DirectReader>(state_);
        } catch (...) {
            return;  // no further engine: this reader has taken no block yet
        }
        try {
            each.reader->run();
        } catch (...) {
            each.failure = std::current_exception();
        }
    }
};

}  // namespace

std::vector<uint32_t> direct_read(int fd, uint64_t size, Extents extents, const Span& span,
                                  const DirectOptions& options, Control& control) {
    const DirectOptions each = shared(options, wanted_nbytes(extents, span));
    Readers readers(fd, size, std::move(extents), span, each, control);
    readers.run();
    return readers.checksums();
}

}  // namespace fastio
