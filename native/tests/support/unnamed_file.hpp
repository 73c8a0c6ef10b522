// Temporary files for tests.
#pragma once

#include <unistd.h>

#include <cstdlib>

#include "tests/support/check.hpp"

// Opens an unlinked file, which is deleted when its descriptor is closed.
inline int unnamed_file() {
    char path[] = "/tmp/fastio-test-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0, "mkstemp");
    unlink(path);
    return fd;
}
