// The quarter octaves that sizes fall in, and what the time of any tool grows with.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace fastio {

constexpr int kBucketsPerOctave = 4;
constexpr int kFirstOctave = 8, kLastOctave = 50;
constexpr int kBuckets = (kLastOctave - kFirstOctave) * kBucketsPerOctave;
constexpr double kLatencyNbytes = 1 << 20;  // latency times bandwidth of a usual disk

// The size in bytes that stands for a bucket: its geometric middle.
inline uint64_t bucket_nbytes(int bucket) {
    double octaves = kFirstOctave + (bucket + 0.5) / kBucketsPerOctave;
    return static_cast<uint64_t>(std::nearbyint(std::pow(2.0, octaves)));
}

// What the logarithm of any tool's time grows with: latency + size / bandwidth, in units of its own.
inline double shape(double nbytes) { return std::log(std::max(nbytes, 0.0) + kLatencyNbytes); }

// The same at a bucket's own size.
inline double shape_at(int bucket) {
    static const std::array<double, kBuckets> shapes = [] {
        std::array<double, kBuckets> made{};
        for (int index = 0; index < kBuckets; ++index) made[index] = shape(static_cast<double>(bucket_nbytes(index)));
        return made;
    }();
    return shapes.at(bucket);
}

// The quarter octave that a size in bytes falls in. Sizes below 304 share the first bucket, vast ones the last.
inline int bucket_of(double nbytes) {
    if (!(nbytes >= 1 << kFirstOctave)) return 0;
    return static_cast<int>(std::min<double>(kBucketsPerOctave * (std::log2(nbytes) - kFirstOctave), kBuckets - 1));
}

}  // namespace fastio
