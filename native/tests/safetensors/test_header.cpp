// Tests the parser of safetensors headers: what it takes, what it leaves to the parser in Python, and that it never
// leaves the text.
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "safetensors/header.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::Header;
using fastio::parse_header;

const std::vector<fastio::HeaderDtype> kDtypes = {{"U8", 1}, {"F32", 4}};

// The text in memory of its own, so that the sanitizer finds each byte that is read beyond it.
std::optional<Header> parse(const std::string& text, std::unique_ptr<char[]>& memory) {
    memory = std::make_unique<char[]>(text.size());
    text.copy(memory.get(), text.size());
    return parse_header({memory.get(), text.size()}, kDtypes);
}

bool is_parsed(const std::string& text) {
    std::unique_ptr<char[]> memory;
    return parse(text, memory).has_value();
}

const std::string kOne = R"("x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";

void check_found() {
    std::unique_ptr<char[]> memory;
    const std::string two = R"("ü":{"data_offsets":[24,24],"shape":[0,9223372036854775807],"dtype":"U8"})";
    const auto header = parse("{\"__metadata__\":{\"a\":\"}\\\"\"}," + kOne + "," + two + "}  ", memory);
    CHECK(header && header->rows.size() == 2 && header->metadata == "{\"a\":\"}\\\"\"}", "two rows and metadata");
    const auto& [x, y] = std::tie(header->rows[0], header->rows[1]);
    CHECK(x.name == "x" && x.begin == 0 && x.end == 24 && x.dtype == 1 && x.rank == 2, "the first row");
    CHECK(header->lengths[x.shape] == 2 && header->lengths[x.shape + 1] == 3, "its shape");
    CHECK(y.name == "ü" && y.begin == 24 && y.end == 24 && y.dtype == 0 && y.rank == 2, "the second row");
    CHECK(fastio::rows_in_order(header->rows, 24) == std::vector<size_t>({0, 1}), "both in order");
    CHECK(!fastio::rows_in_order(header->rows, 25), "a byte is left");
    CHECK(is_parsed("{}") && is_parsed("{} "), "no tensors");
}

void check_left() {
    for (const std::string& text :
         {std::string(""), std::string("{"), std::string("[]"), "{" + kOne, "{" + kOne + ",}", "{" + kOne + "}}",
          "{ " + kOne + "}", "{" + kOne + "}\n", std::string(R"({"__metadata__":null})"),
          std::string(R"({"__metadata__":{},"__metadata__":{}})"), std::string("{\"__metadata__\":{\"a\\"),
          std::string("{\"__metadata__\":{\"}")}) {
        CHECK(!is_parsed(text), "%s", text.c_str());
    }
    for (const auto& [from, to] :
         std::vector<std::pair<std::string, std::string>>{{"x", "x\\n"},
                                                          {"x", "x\n"},
                                                          {"F32", "F16"},
                                                          {"[2,3]", "[2,3.0]"},
                                                          {"[2,3]", "[2,03]"},
                                                          {"[2,3]", "[-2,3]"},
                                                          {"[2,3]", "[2,4]"},
                                                          {"[2,3]", "[2,]"},
                                                          {"[2,3]", "[2,9223372036854775808]"},
                                                          {"[2,3]", "2"},
                                                          {"[2,3]", "[4294967296,4294967296,0]"},
                                                          {"[0,24]", "[24,0]"},
                                                          {"[0,24]", "[0,24,24]"},
                                                          {"[0,24]", "[0,24],\"more\":1"},
                                                          {"[0,24]", "[0,24],\"shape\":[2,3]"},
                                                          {",\"data_offsets\":[0,24]", ""}}) {
        std::string text = "{" + kOne + "}";
        text.replace(text.find(from), from.size(), to);
        CHECK(!is_parsed(text), "%s", text.c_str());
    }
}

// Any change of a few bytes, and any cut: whatever is parsed lies in the text and agrees with itself.
void check_any_bytes() {
    std::mt19937 random(1);
    const std::string good = "{\"__metadata__\":{\"a\":\"b\\\"\"}," + kOne + "}";
    for (int turn = 0; turn < 200000; ++turn) {
        std::string text = good.substr(0, random() % 4 ? good.size() : random() % good.size());
        for (unsigned change = random() % 3; change > 0 && !text.empty(); --change) {
            text[random() % text.size()] = random() % 2 ? "\"\\{}[]:,09 "[random() % 11] : static_cast<char>(random());
        }
        std::unique_ptr<char[]> memory;
        const auto header = parse(text, memory);
        for (size_t index = 0; header && index < header->rows.size(); ++index) {
            const auto& row = header->rows[index];
            CHECK(row.name.data() >= memory.get() && row.name.data() + row.name.size() <= memory.get() + text.size(),
                  "the name lies in the text");
            uint64_t nbytes = kDtypes.at(row.dtype).itemsize;
            for (size_t axis = 0; axis < row.rank; ++axis) nbytes *= header->lengths.at(row.shape + axis);
            CHECK(row.end - row.begin == nbytes, "offsets and shape agree");
        }
    }
}

}  // namespace

int main() {
    check_found();
    check_left();
    check_any_bytes();
    return 0;
}
