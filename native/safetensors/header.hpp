// Reads headers of .safetensors files as most programs write them. All others, damaged ones among them, are left to the
// slower parser in Python, which has an error for each fault.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastio {

// A dtype of the format, and the bytes of an element.
struct HeaderDtype {
    std::string name;
    uint64_t itemsize;
};

// One tensor: its bytes from `begin` to `end` of the data. Its shape are `rank` of the header's lengths, from `shape`
// on.
struct HeaderRow {
    std::string_view name;  // part of the text
    uint64_t begin, end;
    size_t dtype, shape, rank;
};

struct Header {
    std::vector<HeaderRow> rows;  // in the order of the text
    std::vector<uint64_t> lengths;
    std::optional<std::string_view> metadata;  // the text of an object
};

// Returns the tensors of a header. Nothing for a text with white space, other than spaces at its end, with escapes in a
// name, with other fields than dtype, shape and data_offsets, with a dtype that is not in `dtypes`, with a number of
// 2^63 or more, or whose shapes and offsets differ; and for what is no JSON object. Whether names are UTF-8 and differ,
// and what the metadata hold, is not looked at.
std::optional<Header> parse_header(std::string_view text, const std::vector<HeaderDtype>& dtypes);

// Returns the indices of rows by offset, bytes and name; nothing unless they fill `room` bytes without holes.
std::optional<std::vector<size_t>> rows_in_order(const std::vector<HeaderRow>& rows, uint64_t room);

}  // namespace fastio
