#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace simulated {

/// Vector clock: for each stream, by number, the last of its works that happened before a point in the program.
class Clock {
  public:
    uint64_t at(int stream) const { return stream < static_cast<int>(last_.size()) ? last_[stream] : 0; }
    void advance(int stream, uint64_t sequence);
    void join(const Clock& other);

  private:
    std::vector<uint64_t> last_;
};

/// Bytes that a work of a stream reads or writes.
struct Access {
    uintptr_t begin;
    uintptr_t end;
    int stream;
    uint64_t sequence;
    bool write;
    std::string work;
};

/// The accesses to a block of memory that later works may have to wait for.
class History {
  public:
    /// The last access that overlaps, of which one or the other writes, and that did not happen before `now`.
    std::optional<Access> conflict(uintptr_t begin, uintptr_t end, bool write, const Clock& now) const;

    /// Adds an access. Forgets the accesses that `host` has waited for, and those that the new one stands for.
    void add(Access access, const Clock& host);

    void append(const History& other);
    History part(uintptr_t begin, uintptr_t end) const;
    const std::vector<Access>& accesses() const { return accesses_; }

  private:
    std::vector<Access> accesses_;
};

}  // namespace simulated
