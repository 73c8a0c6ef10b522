// Tests that every byte is copied, and none beside them, at all alignments of both sides.
#include <cstring>
#include <vector>

#include "memory/streaming_copy.hpp"
#include "tests/support/check.hpp"

int main() {
    constexpr size_t kLarge = 300 << 10;
    std::vector<unsigned char> source(kLarge + 256), target(kLarge + 256);
    for (size_t at = 0; at < source.size(); ++at) source[at] = static_cast<unsigned char>(at * 131 + at / 251);
    for (const size_t nbytes :
         {size_t{0}, size_t{1}, size_t{100}, size_t{256} << 10, kLarge, kLarge + 1, kLarge + 63}) {
        for (size_t to = 0; to <= 64; to += 7) {
            for (size_t from = 0; from <= 64; from += 13) {
                std::memset(target.data(), 0xEE, target.size());
                fastio::streaming_copy(target.data() + to, source.data() + from, nbytes);
                CHECK(std::memcmp(target.data() + to, source.data() + from, nbytes) == 0, "%zu bytes to %zu from %zu",
                      nbytes, to, from);
                bool beside = false;
                for (size_t at = 0; at < target.size(); ++at)
                    beside = beside || ((at < to || at >= to + nbytes) && target[at] != 0xEE);
                CHECK(!beside, "%zu bytes to %zu from %zu: nothing else is written", nbytes, to, from);
            }
        }
    }
    return 0;
}
