// Tells from the directory whether torch.save or fastio wrote an archive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zip/entries.hpp"

namespace fastio {

// General purpose flags (PKWARE's APPNOTE 6.3, section 4.4.4): encrypted, patch data, strong encryption.
constexpr uint16_t kUnreadable = 1 | 1 << 5 | 1 << 6;

// Whether all records are in the same folder. torch opens no other archive.
bool in_one_folder(const std::vector<ZipRecord>& records);

// Returns why only torch's own reader can read an archive in one folder; empty if fastio can.
//
// torch looks names up as C strings, ignores the case of ASCII letters, and lists names as UTF-8 of at most 511 bytes.
// That makes no difference for the names of torch.save, which are in lower case behind the folder. Throws Malformed for
// a name that torch cannot list.
std::string nonstandard_reason(const std::vector<ZipRecord>& records, bool is_standard_end);

}  // namespace fastio
