#pragma once

#include "execution/machine.hpp"

namespace simulated {

int current_device();
void set_current_device(int device);
Stream& get_stream(int device, int64_t id);
Stream& current_stream(int device);
int64_t current_stream_id(int device);
void set_current_stream(int device, int64_t id);
Stream& next_pool_stream(int device);

/// Queues a work that accesses `ranges` and returns its number in the stream. Needs the lock.
///
/// Raises if memory in `ranges` is free or unknown, or is accessed by a work of another stream that may not have ended.
uint64_t issue(Lock& lock, Stream& stream, Work work, const std::vector<Range>& ranges);

/// Queues a work whatever state the device is in: poison of memory that is freed.
uint64_t issue_unchecked(Stream& stream, Work work);

/// Whether all its works have ended, as the host sees them then.
bool has_ended(Lock& lock, Stream& stream);

void wait_for_stream(Lock& lock, Stream& stream, const char* call);
void wait_for_device(Lock& lock, int device, const char* call);

/// Lets the stream's works up to `sequence` start.
void demand(Stream& stream, uint64_t sequence);

std::shared_ptr<Recording> record(Stream& stream);

/// Records an event whatever state the device is in. Needs the lock.
std::shared_ptr<Recording> record_unchecked(Stream& stream);

/// Makes the works before it start, and waits until they are done, which tells its modelled time. The host goes on.
void perform(Lock& lock, const Recording& recording);

/// Whether the works before it have ended, as the host sees them then. In the modelled time, performs them.
bool is_over(Lock& lock, const Recording& recording);

/// Makes the works before it start, and waits for them. The host has seen them then.
void await(Lock& lock, const Recording& recording);
void wait_in_stream(Stream& stream, const std::shared_ptr<Recording>& awaited);
bool has_ended(const std::shared_ptr<Recording>& recording);
void wait_for_recording(const std::shared_ptr<Recording>& recording);

}  // namespace simulated
