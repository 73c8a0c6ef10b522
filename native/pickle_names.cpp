#include "pickle_names.hpp"

#include <array>
#include <cstdint>
#include <cstring>

namespace fastio {
namespace {

// What follows an opcode: so many bytes, bytes after their number, lines, or what is not to be read on.
enum class After : uint8_t { kUnknown, kBytes, kCounted, kLine, kName, kStop };

struct Opcode {
    After after = After::kUnknown;
    uint8_t nbytes = 0;  // of the argument, or of its number
};

// Protocols 0 to 5, as Python's pickletools has them. STACK_GLOBAL and EXT1, 2 and 4 are left unknown.
constexpr std::array<Opcode, 256> opcodes() {
    std::array<Opcode, 256> table{};
    for (char code : {'(', '0', '1', '2', 'N', 'R', 'a', 'b', 'd', '}', 'e', 'l', ']', 'o', 's', 't', ')', 'u', 'Q'}) {
        table[static_cast<uint8_t>(code)] = {After::kBytes, 0};
    }
    for (int code : {0x81, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8f, 0x90, 0x91, 0x92, 0x94, 0x97, 0x98}) {
        table[code] = {After::kBytes, 0};
    }
    for (int code : {int{'K'}, int{'h'}, int{'q'}, 0x80}) table[code] = {After::kBytes, 1};
    table['M'] = {After::kBytes, 2};
    for (char code : {'J', 'j', 'r'}) table[static_cast<uint8_t>(code)] = {After::kBytes, 4};
    for (int code : {int{'G'}, 0x95}) table[code] = {After::kBytes, 8};
    for (int code : {int{'U'}, int{'C'}, 0x8a, 0x8c}) table[code] = {After::kCounted, 1};
    for (int code : {int{'T'}, int{'B'}, int{'X'}, 0x8b}) table[code] = {After::kCounted, 4};
    for (int code : {0x8d, 0x8e, 0x96}) table[code] = {After::kCounted, 8};
    for (char code : {'I', 'F', 'L', 'S', 'V', 'P', 'g', 'p'}) table[static_cast<uint8_t>(code)] = {After::kLine, 0};
    for (char code : {'c', 'i'}) table[static_cast<uint8_t>(code)] = {After::kName, 0};
    table['.'] = {After::kStop, 0};
    return table;
}

constexpr std::array<Opcode, 256> kOpcodes = opcodes();

// The rest of the line, without its end; false where it has none.
bool take_line(std::string_view& rest, std::string_view& line) {
    size_t end = rest.find('\n');
    if (end == std::string_view::npos) return false;
    line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    return true;
}

}  // namespace

PickleNames pickle_names(const void* data, size_t nbytes) {
    PickleNames names;
    std::string_view rest(static_cast<const char*>(data), nbytes), module, name;
    while (!rest.empty()) {
        Opcode opcode = kOpcodes[static_cast<uint8_t>(rest[0])];
        rest.remove_prefix(1);
        uint64_t skipped = opcode.nbytes;
        switch (opcode.after) {
            case After::kStop:
                names.all = true;
                return names;
            case After::kUnknown:
                return names;
            case After::kLine:
                if (!take_line(rest, name)) return names;
                break;
            case After::kName:
                if (!take_line(rest, module) || !take_line(rest, name)) return names;
                names.found.emplace(module, name);
                break;
            case After::kCounted: {
                if (opcode.nbytes > rest.size()) return names;
                uint64_t count = 0;  // little-endian
                for (size_t at = opcode.nbytes; at-- > 0;) count = count << 8 | static_cast<uint8_t>(rest[at]);
                if (count > rest.size() - opcode.nbytes) return names;
                skipped += count;
                break;
            }
            case After::kBytes:
                break;
        }
        if (skipped > rest.size()) return names;
        rest.remove_prefix(skipped);
    }
    return names;
}

}  // namespace fastio
