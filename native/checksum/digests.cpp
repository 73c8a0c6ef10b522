#include "checksum/digests.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "checksum/crc32.hpp"
#include "support/errors.hpp"

namespace fastio {

Digests::Digests(size_t blocks) : digests_(blocks) {
    auto* bytes = reinterpret_cast<uint8_t*>(key_.data());
    for (size_t done = 0; done < sizeof(key_);) {
        ssize_t count = getrandom(bytes + done, sizeof(key_) - done, 0);
        if (count < 0 && errno != EINTR) throw SystemError(errno, "getrandom", 0);
        if (count > 0) done += static_cast<size_t>(count);
    }
}

uint32_t Digests::copy(size_t first, uint8_t* target, const uint8_t* source, uint64_t nbytes) {
    require(first, nbytes);
    uint32_t crc = 0;
    for (uint64_t at = 0; at < nbytes; at += kBlock, ++first) {
        uint64_t size = std::min(kBlock, nbytes - at);
        crc = crc32_copy(crc, target + at, source + at, size);
        // Digest the copy, not the source, which may change meanwhile: a digest describes the bytes in `target`.
        digests_[first] = digest(target + at, size);
    }
    return crc;
}

bool Digests::update(size_t first, uint8_t* target, const uint8_t* source, uint64_t nbytes) {
    require(first, nbytes);
    bool copied = false;
    for (uint64_t at = 0; at < nbytes; at += kBlock, ++first) {
        uint64_t size = std::min(kBlock, nbytes - at);
        if (digest(source + at, size) == digests_[first]) continue;
        std::memcpy(target + at, source + at, size);
        digests_[first] = digest(target + at, size);  // of the copy, as above
        copied = true;
    }
    return copied;
}

bool Digests::differs(size_t first, const uint8_t* source, uint64_t nbytes) const {
    require(first, nbytes);
    return nbytes > 0 && digest(source, std::min(kBlock, nbytes)) != digests_[first];
}

void Digests::require(size_t first, uint64_t nbytes) const {
    uint64_t blocks = nbytes / kBlock + (nbytes % kBlock != 0);
    if (first > digests_.size() || blocks > digests_.size() - first) {
        throw Refused("blocks " + std::to_string(first) + " to " + std::to_string(first + blocks) +
                      " are out of range: there are " + std::to_string(digests_.size()) + " digests");
    }
}

NhDigest Digests::digest(const uint8_t* data, uint64_t nbytes) const noexcept {
    uint64_t whole = nbytes / kNhStride * kNhStride, left = nbytes - whole;
    NhDigest sums = nh_hash(key_.data(), data, whole);
    if (left > 0) {
        uint8_t last[kNhStride] = {};  // each block number has one length, so zero padding is unambiguous
        std::memcpy(last, data + whole, left);
        NhDigest more = nh_hash(key_.data() + whole / sizeof(uint32_t), last, kNhStride);
        for (size_t pass = 0; pass < sums.size(); ++pass) sums[pass] += more[pass];
    }
    return sums;
}

}  // namespace fastio
