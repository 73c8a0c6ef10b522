// Stand-ins for the file and the device of a staged transfer.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "device/device_copies.hpp"
#include "memory/memory.hpp"
#include "support/errors.hpp"
#include "tests/support/check.hpp"
#include "transfer/staged_file.hpp"

// A device whose memory is the host's. It does a copy as late as it may: when the host waits for an event behind it, or
// when the stream is destroyed. So a slot that is used again too early gives wrong bytes, every time.
class LateDevice {
  public:
    struct Faults {
        int64_t start;  // the number of the copy that cannot be started
        int64_t end;    // of the copy that fails when it is done
    };

    // Only one at a time.
    LateDevice() : LateDevice(Faults{-1, -1}) {}
    explicit LateDevice(Faults faults) {
        state().faults = faults;
        state().started = 0;
    }

    const fastio::DeviceCopies* copies() const {
        static constexpr fastio::DeviceCopies table{make_stream, destroy_stream, make_event, destroy_event,
                                                    copy,        copy_to_host,   record,     wait};
        return &table;
    }
    // Streams and events that exist.
    int64_t alive() const { return state().alive; }
    int64_t started() const { return state().started; }

  private:
    static constexpr uint64_t kNotRecorded = UINT64_MAX;

    struct State {
        Faults faults;
        std::atomic<int64_t> started{0};
        std::atomic<int64_t> alive{0};
    };
    struct Copy {
        void* to;
        const void* from;
        uint64_t nbytes;
        bool fails;
    };
    struct Stream {
        std::deque<Copy> queue;
        uint64_t issued = 0;
        uint64_t done = 0;
        bool failed = false;

        void advance(uint64_t until) {
            for (; done < until; ++done) {
                const Copy& copy = queue.front();
                if (copy.fails) failed = true;
                if (!copy.fails) std::memcpy(copy.to, copy.from, copy.nbytes);
                queue.pop_front();
            }
        }
    };

    static State& state() {
        static State instance;
        return instance;
    }
    static Stream& stream_of(void* stream) { return *static_cast<Stream*>(stream); }
    static const char* make_stream(int, void** stream) {
        ++state().alive;
        *stream = new Stream;
        return nullptr;
    }
    static void destroy_stream(void* stream) {
        stream_of(stream).advance(stream_of(stream).issued);
        delete &stream_of(stream);
        --state().alive;
    }
    static const char* make_event(void*, void** event) {
        ++state().alive;
        *event = new uint64_t(kNotRecorded);
        return nullptr;
    }
    static void destroy_event(void*, void* event) {
        delete static_cast<uint64_t*>(event);
        --state().alive;
    }
    static const char* copy(void* stream, void* to, const void* from, uint64_t nbytes) {
        const int64_t number = state().started++;
        if (number == state().faults.start) return "the copy cannot start";
        stream_of(stream).queue.push_back({to, from, nbytes, number == state().faults.end});
        ++stream_of(stream).issued;
        return nullptr;
    }
    static const char* copy_to_host(void* stream, void* host, const void* memory, uint64_t nbytes) {
        return copy(stream, host, memory, nbytes);
    }
    static const char* record(void* stream, void* event) {
        *static_cast<uint64_t*>(event) = stream_of(stream).issued;
        return nullptr;
    }
    static const char* wait(void* stream, void* event) {
        CHECK(*static_cast<uint64_t*>(event) != kNotRecorded, "the event is waited for before it is recorded");
        stream_of(stream).advance(*static_cast<uint64_t*>(event));
        return stream_of(stream).failed ? "the copy failed" : nullptr;
    }
};

// A file in memory. `before` is called with the offset of each read or write before it moves a byte, and may throw.
class MemoryFile : public fastio::StagedFile {
  public:
    explicit MemoryFile(std::vector<uint8_t> contents, std::function<void(uint64_t)> before = {})
        : bytes(std::move(contents)), before_(std::move(before)) {}

    void read(uint8_t* page, uint64_t begin, uint64_t end,
              const std::function<void(uint64_t, uint64_t)>& filled) override {
        if (before_) before_(begin);
        std::memcpy(page + begin % fastio::kPage, &bytes[begin], end - begin);
        filled(begin, end);
    }
    void write(const uint8_t* page, uint64_t begin, uint64_t end) override {
        if (before_) before_(begin);
        std::memcpy(&bytes[begin], page, end - begin);
    }

    std::vector<uint8_t> bytes;

  private:
    std::function<void(uint64_t)> before_;
};
