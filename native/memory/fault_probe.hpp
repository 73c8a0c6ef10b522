// Finds out whether a mapping can be read, at the risk of another process.
#pragma once

#include <cstdint>

namespace fastio {

// Maps the first `nbytes` of `fd` in a child process, which reads a byte of every page. Returns 0 if that works, the
// number of the signal that killed the child, or -1 if the child could not map it. Throws SystemError.
int fault_signal(int fd, uint64_t nbytes);

}  // namespace fastio
