// Whether an archive is one that torch.save or fastio wrote, by its directory alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zip/entries.hpp"

namespace fastio {

// General purpose flags (PKWARE's APPNOTE 6.3, section 4.4.4): encrypted, a patch, strongly encrypted.
constexpr uint16_t kUnreadable = 1 | 1 << 5 | 1 << 6;

// Whether every record is in one and the same folder. torch opens no other archive.
bool in_one_folder(const std::vector<ZipRecord>& records);

// Why only torch's own reader can say what an archive in one folder holds; empty if names and bytes mean what they say.
//
// torch looks names up without regard to the case of ASCII letters, as C strings, and lists them as UTF-8 of at most
// 511 bytes. Of names that torch.save gives none of that makes a difference: all are in lower case behind the folder.
// Throws Malformed for a name that torch cannot list.
std::string nonstandard_reason(const std::vector<ZipRecord>& records, bool is_standard_end);

}  // namespace fastio
