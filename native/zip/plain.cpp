#include "zip/plain.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace fastio {

namespace {

constexpr size_t kLongestName = 511;  // that torch lists

// Returns the length in bytes of the UTF-8 sequence at `at`; 0 if it is invalid (RFC 3629: no surrogates, no overlong
// forms).
size_t utf8_length(const std::string& text, size_t at) {
    auto byte = [&](size_t index) { return index < text.size() ? static_cast<uint8_t>(text[index]) : uint8_t{0}; };
    auto follows = [&](size_t index) { return (byte(index) & 0xC0) == 0x80; };
    uint8_t first = byte(at), second = byte(at + 1);
    if (first < 0x80) return 1;
    if (first >= 0xC2 && first <= 0xDF) return follows(at + 1) ? 2 : 0;
    if (first >= 0xE0 && first <= 0xEF) {
        bool right = !(first == 0xE0 && second < 0xA0) && !(first == 0xED && second > 0x9F);
        return right && follows(at + 1) && follows(at + 2) ? 3 : 0;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        bool right = !(first == 0xF0 && second < 0x90) && !(first == 0xF4 && second > 0x8F);
        return right && follows(at + 1) && follows(at + 2) && follows(at + 3) ? 4 : 0;
    }
    return 0;
}

// Whether a name is valid UTF-8 from its byte `at` on.
bool is_text(const std::string& name, size_t at) {
    while (at < name.size()) {
        size_t length = utf8_length(name, at);
        if (length == 0) return false;
        at += length;
    }
    return true;
}

bool is_standard_name(const std::string& name) {
    size_t folder = name.find('/');
    if (name.size() > kLongestName || name.find('\0') != std::string::npos) return false;
    if (!is_text(name, folder)) {
        throw Malformed(name, "its name is not UTF-8, which torch refuses; zip the file again with names that are");
    }
    return is_text(name, 0) && std::none_of(name.begin() + static_cast<std::ptrdiff_t>(folder), name.end(),
                                            [](char letter) { return letter >= 'A' && letter <= 'Z'; });
}

}  // namespace

bool in_one_folder(const std::vector<ZipRecord>& records) {
    if (records.empty()) return false;
    size_t slash = records.front().name.find('/');
    if (slash == std::string::npos) return false;
    std::string folder = records.front().name.substr(0, slash + 1);
    return std::all_of(records.begin(), records.end(),
                       [&](const ZipRecord& record) { return record.name.compare(0, folder.size(), folder) == 0; });
}

std::string nonstandard_reason(const std::vector<ZipRecord>& records, bool is_standard_end) {
    if (!is_standard_end) return "its end record is not the last thing in the file";
    for (const ZipRecord& record : records) {
        if (record.method != 0 || (record.flags & kUnreadable) != 0) return "it was compressed or encrypted";
        if (!is_standard_name(record.name)) return "a record has a name that torch.save does not write";
    }
    return "";
}

}  // namespace fastio
