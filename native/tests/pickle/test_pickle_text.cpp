// Tests the text constants of a pickle: all are found, and arbitrary bytes never make the parser leave the pickle.
#include <random>
#include <string>

#include "pickle/text.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::pickle_text;
using namespace std::string_literals;

void check_found() {
    std::string pickle = "\x80\x02(X\x04\0\0\0ca\nbcone\nTwo\nq\x01K\x05\x8c\x02xyS'old'\nVnew\nC\x03rawh\x01t."s;
    auto text = pickle_text(pickle.data(), pickle.size(), 5);
    CHECK(pickle_text(pickle.data(), pickle.size(), 2).found.size() == 1, "longer text is skipped");
    CHECK(text.complete && text.found.size() == 4, "%zu constants", text.found.size());
    for (const char* wanted : {"ca\nb", "xy", "old", "new"}) CHECK(text.found.count(wanted) == 1, "%s", wanted);
    for (size_t nbytes = 0; nbytes < pickle.size(); ++nbytes) {
        CHECK(!pickle_text(pickle.data(), nbytes, 5).complete, "a pickle cut after %zu bytes is incomplete", nbytes);
    }
}

void check_any_bytes() {
    std::mt19937 random(1);
    for (int turn = 0; turn < 200000; ++turn) {
        std::string pickle(random() % 24, '\0');
        for (char& byte : pickle)
            byte = static_cast<char>(random() % 3 ? random() : "XTVc\n\x8d\x96.'S"[random() % 10]);
        for (std::string_view text : pickle_text(pickle.data(), pickle.size(), 99).found) {
            CHECK(text.data() >= pickle.data() && text.data() + text.size() <= pickle.data() + pickle.size(),
                  "the text lies in the pickle");
        }
    }
}

}  // namespace

int main() {
    check_found();
    check_any_bytes();
}
