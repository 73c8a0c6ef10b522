#include "pickle/text.hpp"

#include <array>
#include <cstdint>

namespace fastio {
namespace {

// The form of an opcode's argument: a fixed number of bytes, a count and bytes, one line, two lines, or unknown.
enum class Argument : uint8_t { kUnknown, kBytes, kCounted, kText, kLine, kTextLine, kTwoLines, kStop };

struct Opcode {
    Argument argument = Argument::kUnknown;
    uint8_t nbytes = 0;  // of the argument, or of its count field
};

// The opcodes of protocols 0 to 5, after Python's pickletools.
constexpr std::array<Opcode, 256> opcodes() {
    std::array<Opcode, 256> table{};
    for (char code : {'(', '0', '1', '2', 'N', 'R', 'a', 'b', 'd', '}', 'e', 'l', ']', 'o', 's', 't', ')', 'u', 'Q'}) {
        table[static_cast<uint8_t>(code)] = {Argument::kBytes, 0};
    }
    for (int code : {0x81, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8f, 0x90, 0x91, 0x92, 0x93, 0x94, 0x97, 0x98}) {
        table[code] = {Argument::kBytes, 0};
    }
    for (int code : {int{'K'}, int{'h'}, int{'q'}, 0x80, 0x82}) table[code] = {Argument::kBytes, 1};
    for (int code : {int{'M'}, 0x83}) table[code] = {Argument::kBytes, 2};
    for (int code : {int{'J'}, int{'j'}, int{'r'}, 0x84}) table[code] = {Argument::kBytes, 4};
    for (int code : {int{'G'}, 0x95}) table[code] = {Argument::kBytes, 8};
    for (int code : {int{'C'}, 0x8a}) table[code] = {Argument::kCounted, 1};
    for (int code : {int{'B'}, 0x8b}) table[code] = {Argument::kCounted, 4};
    for (int code : {0x8e, 0x96}) table[code] = {Argument::kCounted, 8};
    for (int code : {int{'U'}, 0x8c}) table[code] = {Argument::kText, 1};
    for (int code : {int{'T'}, int{'X'}}) table[code] = {Argument::kText, 4};
    table[0x8d] = {Argument::kText, 8};
    for (char code : {'I', 'F', 'L', 'P', 'g', 'p'}) table[static_cast<uint8_t>(code)] = {Argument::kLine, 0};
    for (char code : {'S', 'V'}) table[static_cast<uint8_t>(code)] = {Argument::kTextLine, 0};
    for (char code : {'c', 'i'}) table[static_cast<uint8_t>(code)] = {Argument::kTwoLines, 0};
    table['.'] = {Argument::kStop, 0};
    return table;
}

constexpr std::array<Opcode, 256> kOpcodes = opcodes();

// Takes a line, without its newline. Returns false if there is no newline.
bool take_line(std::string_view& rest, std::string_view& line) {
    size_t end = rest.find('\n');
    if (end == std::string_view::npos) return false;
    line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    return true;
}

bool take(std::string_view& rest, uint64_t nbytes, std::string_view& taken) {
    if (nbytes > rest.size()) return false;
    taken = rest.substr(0, nbytes);
    rest.remove_prefix(nbytes);
    return true;
}

// Takes a little-endian count of `width` bytes, then so many bytes.
bool take_counted(std::string_view& rest, uint8_t width, std::string_view& taken) {
    std::string_view number;
    if (!take(rest, width, number)) return false;
    uint64_t count = 0;
    for (size_t at = width; at-- > 0;) count = count << 8 | static_cast<uint8_t>(number[at]);
    return take(rest, count, taken);
}

// Removes the quotes that protocol 0 writes around text.
std::string_view unquoted(std::string_view line) {
    const bool is_quoted = line.size() >= 2 && (line.front() == '\'' || line.front() == '"');
    return is_quoted ? line.substr(1, line.size() - 2) : line;
}

}  // namespace

PickleText pickle_text(const void* data, size_t nbytes, size_t longest) {
    PickleText text;
    std::string_view rest(static_cast<const char*>(data), nbytes), taken;
    while (!rest.empty()) {
        const Opcode opcode = kOpcodes[static_cast<uint8_t>(rest[0])];
        rest.remove_prefix(1);
        switch (opcode.argument) {
            case Argument::kStop:
                text.complete = true;
                return text;
            case Argument::kUnknown:
                return text;
            case Argument::kBytes:
                if (!take(rest, opcode.nbytes, taken)) return text;
                break;
            case Argument::kCounted:
                if (!take_counted(rest, opcode.nbytes, taken)) return text;
                break;
            case Argument::kText:
                if (!take_counted(rest, opcode.nbytes, taken)) return text;
                if (taken.size() <= longest) text.found.insert(taken);
                break;
            case Argument::kLine:
                if (!take_line(rest, taken)) return text;
                break;
            case Argument::kTextLine:
                if (!take_line(rest, taken)) return text;
                taken = unquoted(taken);
                if (taken.size() <= longest) text.found.insert(taken);
                break;
            case Argument::kTwoLines:
                if (!take_line(rest, taken) || !take_line(rest, taken)) return text;
                break;
        }
    }
    return text;
}

}  // namespace fastio
