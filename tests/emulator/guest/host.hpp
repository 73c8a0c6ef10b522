// What a test says to the script that started the machine.
#pragma once

#include <cstdio>
#include <string>

namespace rig {

// A few words that stand behind the test's name in the report.
inline void note(const std::string& text) {
    std::printf("rig: note %s\n", text.c_str());
    std::fflush(stdout);
}

// Something that the script does before the test goes on.
inline void ask(const std::string& text) {
    std::printf("rig: ask %s\n", text.c_str());
    std::fflush(stdout);
    while (std::getchar() != '\n') continue;
}

}  // namespace rig
