#include "safetensors/header.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace fastio {

namespace {

constexpr uint64_t kMost = uint64_t{1} << 63;  // torch's sizes have 63 bits

// A place in the text. Each function moves it behind what it found, or returns false for anything else.
class Scanner {
  public:
    explicit Scanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

    bool is_at_end() const { return at_ == end_; }

    bool skip(char wanted) {
        if (at_ == end_ || *at_ != wanted) return false;
        ++at_;
        return true;
    }

    bool skip(std::string_view wanted) {
        if (static_cast<size_t>(end_ - at_) < wanted.size() || std::memcmp(at_, wanted.data(), wanted.size()) != 0) {
            return false;
        }
        at_ += wanted.size();
        return true;
    }

    // Text in quotes, without escapes and control characters.
    bool text(std::string_view& found) {
        if (!skip('"')) return false;
        const char* begin = at_;
        while (at_ != end_ && *at_ != '"') {
            if (static_cast<unsigned char>(*at_) < 0x20 || *at_ == '\\') return false;
            ++at_;
        }
        found = {begin, static_cast<size_t>(at_ - begin)};
        return skip('"');
    }

    // An object that holds no other one, up to its brace: the caller parses it.
    bool object(std::string_view& found) {
        const char* begin = at_;
        if (!skip('{')) return false;
        for (bool quoted = false; at_ != end_; ++at_) {
            if (quoted && *at_ == '\\') {
                if (++at_ == end_) return false;
            } else if (*at_ == '"') {
                quoted = !quoted;
            } else if (!quoted && *at_ == '}') {
                ++at_;
                found = {begin, static_cast<size_t>(at_ - begin)};
                return true;
            }
        }
        return false;
    }

    // A whole number below 2^63, as JSON writes it.
    bool number(uint64_t& found) {
        const char* begin = at_;
        found = 0;
        while (at_ != end_ && *at_ >= '0' && *at_ <= '9') {
            found = found * 10 + static_cast<uint64_t>(*at_++ - '0');
            if (found >= kMost || at_ - begin > 19) return false;
        }
        return at_ != begin && (*begin != '0' || at_ - begin == 1);
    }

  private:
    const char *at_, *end_;
};

class HeaderParser {
  public:
    HeaderParser(std::string_view text, const std::vector<HeaderDtype>& dtypes) : scanner_(text), dtypes_(dtypes) {}

    std::optional<Header> parse() {
        if (!scanner_.skip('{')) return std::nullopt;
        if (!scanner_.skip('}')) {
            do {
                if (!member()) return std::nullopt;
            } while (scanner_.skip(','));
            if (!scanner_.skip('}')) return std::nullopt;
        }
        while (scanner_.skip(' ')) {
        }
        return scanner_.is_at_end() ? std::optional<Header>(std::move(header_)) : std::nullopt;
    }

  private:
    bool member() {
        std::string_view name;
        if (!scanner_.text(name) || !scanner_.skip(':')) return false;
        if (name != "__metadata__") return row(name);
        std::string_view metadata;
        if (header_.metadata || !scanner_.object(metadata)) return false;
        header_.metadata = metadata;
        return true;
    }

    bool row(std::string_view name) {
        HeaderRow row{name, 0, 0, 0, header_.lengths.size(), 0};
        bool has_dtype = false, has_shape = false, has_offsets = false;
        if (!scanner_.skip('{')) return false;
        do {
            if (scanner_.skip("\"dtype\":")) {
                if (std::exchange(has_dtype, true) || !dtype(row.dtype)) return false;
            } else if (scanner_.skip("\"shape\":")) {
                if (std::exchange(has_shape, true) || !shape(row.rank)) return false;
            } else if (scanner_.skip("\"data_offsets\":[")) {
                if (std::exchange(has_offsets, true) || !scanner_.number(row.begin) || !scanner_.skip(',') ||
                    !scanner_.number(row.end) || !scanner_.skip(']')) {
                    return false;
                }
            } else {
                return false;
            }
        } while (scanner_.skip(','));
        if (!scanner_.skip('}') || !has_dtype || !has_shape || !has_offsets) return false;
        uint64_t nbytes = 0;
        if (!bytes_of(row, nbytes) || row.begin > row.end || row.end - row.begin != nbytes) return false;
        header_.rows.push_back(row);
        return true;
    }

    bool dtype(size_t& found) {
        std::string_view name;
        if (!scanner_.text(name)) return false;
        for (found = 0; found < dtypes_.size(); ++found) {
            if (dtypes_[found].name == name) return true;
        }
        return false;
    }

    bool shape(size_t& rank) {
        if (!scanner_.skip('[')) return false;
        if (scanner_.skip(']')) return true;
        do {
            uint64_t length = 0;
            if (!scanner_.number(length)) return false;
            header_.lengths.push_back(length);
            ++rank;
        } while (scanner_.skip(','));
        return scanner_.skip(']');
    }

    // The bytes of a tensor; false for 2^63 elements or more, zeros left out.
    bool bytes_of(const HeaderRow& row, uint64_t& nbytes) const {
        nbytes = dtypes_[row.dtype].itemsize;
        bool is_empty = false;
        for (size_t index = row.shape; index < row.shape + row.rank; ++index) {
            const uint64_t length = header_.lengths[index];
            is_empty = is_empty || length == 0;
            if (__builtin_mul_overflow(nbytes, std::max<uint64_t>(length, 1), &nbytes) || nbytes >= kMost) return false;
        }
        if (is_empty) nbytes = 0;
        return true;
    }

    Scanner scanner_;
    const std::vector<HeaderDtype>& dtypes_;
    Header header_;
};

}  // namespace

std::optional<Header> parse_header(std::string_view text, const std::vector<HeaderDtype>& dtypes) {
    return HeaderParser(text, dtypes).parse();
}

std::optional<std::vector<size_t>> rows_in_order(const std::vector<HeaderRow>& rows, uint64_t room) {
    std::vector<size_t> order(rows.size());
    for (size_t index = 0; index < order.size(); ++index) order[index] = index;
    const auto is_before = [&](size_t one, size_t other) {
        const HeaderRow &left = rows[one], &right = rows[other];
        return std::tie(left.begin, left.end, left.name) < std::tie(right.begin, right.end, right.name);
    };
    if (!std::is_sorted(order.begin(), order.end(), is_before)) std::sort(order.begin(), order.end(), is_before);
    uint64_t end = 0;
    for (size_t index : order) {
        if (rows[index].begin != end) return std::nullopt;
        end = rows[index].end;
    }
    if (end != room) return std::nullopt;
    return order;
}

}  // namespace fastio
