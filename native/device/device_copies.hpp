// The functions by which a transfer reaches the memory of an accelerator: a table of C function pointers, so that each
// kind of accelerator brings its own without linking.
#pragma once

#include <cstdint>

namespace fastio {

// Copies run in the order of their stream. Every function that returns text returns null on success, else the reason of
// the failure, valid until the next call by the same thread. All are thread-safe, and leave the thread's current device
// as it is; a stream and its events are used by one thread at a time.
struct DeviceCopies {
    // Makes a stream that is ordered after no other one, on the device of that index.
    const char* (*make_stream)(int device, void** stream);
    // Waits for all work of the stream, and destroys it.
    void (*destroy_stream)(void* stream);
    const char* (*make_event)(void* stream, void** event);
    void (*destroy_event)(void* stream, void* event);
    // Start a copy of `nbytes`. The host's memory is pinned, and must stay as it is until an event behind the copy.
    const char* (*to_device)(void* stream, void* device_memory, const void* host, uint64_t nbytes);
    const char* (*to_host)(void* stream, void* host, const void* device_memory, uint64_t nbytes);
    // Records the event behind all work of the stream so far.
    const char* (*record)(void* stream, void* event);
    // Waits until the event's work has ended. Fails if some of it failed.
    const char* (*wait)(void* stream, void* event);
};

}  // namespace fastio
