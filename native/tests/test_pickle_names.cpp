// The names in a pickle: all that are there, and no step outside it, whatever it holds.
#include <random>
#include <string>

#include "../pickle_names.hpp"
#include "check.hpp"

namespace {

using fastio::pickle_names;
using namespace std::string_literals;

void check_found() {
    std::string text = "\x80\x02(X\x04\0\0\0ca\nbq\ncone\nTwo\nq\x01K\x05iabc.def\nG\ncone\nTwo\nh\x01."s;
    auto names = pickle_names(text.data(), text.size());
    CHECK(names.all && names.found.size() == 2, "%zu names", names.found.size());
    CHECK(names.found.count({"one", "Two"}) && names.found.count({"abc.def", "G"}), "the names");
    for (size_t nbytes = 0; nbytes < text.size(); ++nbytes) {
        CHECK(!pickle_names(text.data(), nbytes).all, "cut after %zu bytes", nbytes);
    }
}

void check_hidden() {
    for (const std::string& text : {"\x80\x04\x8c\x01q\x8c\x01r\x93."s, "\x80\x02\x82\x05."s, "\xff."s, "ca\nb"s}) {
        CHECK(!pickle_names(text.data(), text.size()).all, "of %zu bytes", text.size());
    }
}

void check_any_bytes() {
    std::mt19937 random(1);
    for (int turn = 0; turn < 200000; ++turn) {
        std::string text(random() % 24, '\0');
        for (char& byte : text) byte = static_cast<char>(random() % 3 ? random() : "XTBc\n\x8d\x96.()"[random() % 10]);
        for (const auto& [module, name] : pickle_names(text.data(), text.size()).found) {
            CHECK(module.data() >= text.data() && name.data() + name.size() <= text.data() + text.size(), "inside");
        }
    }
}

}  // namespace

int main() {
    check_found();
    check_hidden();
    check_any_bytes();
}
