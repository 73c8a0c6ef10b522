// Messages from a test to the script that started the machine.
#pragma once

#include <cstdio>
#include <string>

namespace rig {

// Sends a text that the report shows after the test's name.
inline void note(const std::string& text) {
    std::printf("rig: note %s\n", text.c_str());
    std::fflush(stdout);
}

// Sends a request and waits until the script has done it.
inline void ask(const std::string& text) {
    std::printf("rig: ask %s\n", text.c_str());
    std::fflush(stdout);
    while (std::getchar() != '\n') continue;
}

}  // namespace rig
