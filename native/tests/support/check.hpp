// The test framework of the native tests: CHECK prints a failure with its place and exits the program with 1.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition, ...)                                                                  \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            std::fprintf(stderr, "%s:%d: CHECK(%s) failed: ", __FILE__, __LINE__, #condition); \
            std::fprintf(stderr, __VA_ARGS__);                                                 \
            std::fprintf(stderr, "\n");                                                        \
            std::exit(1);                                                                      \
        }                                                                                      \
    } while (false)
