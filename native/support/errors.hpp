// Exceptions of the native part. bindings/module.cpp translates them to the classes of fastio.errors.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace fastio {

// A system call failed. `error` is its errno.
struct SystemError : std::exception {
    int error;
    std::string operation;
    uint64_t offset;

    SystemError(int error, std::string operation, uint64_t offset)
        : error(error), operation(std::move(operation)), offset(offset) {}
    const char* what() const noexcept override { return operation.c_str(); }
};

// This way cannot serve the request on this system; another transport may.
struct Refused : std::exception {
    std::string reason;

    explicit Refused(std::string reason) : reason(std::move(reason)) {}
    const char* what() const noexcept override { return reason.c_str(); }
};

// The file ends before the bytes that its directory promises.
struct Truncated : std::exception {
    uint64_t offset;

    explicit Truncated(uint64_t offset) : offset(offset) {}
    const char* what() const noexcept override { return "the file is too short"; }
};

// Returns the file offset of a failure; 0 if it has none.
inline uint64_t offset_of(const std::exception_ptr& failure) {
    try {
        std::rethrow_exception(failure);
    } catch (const SystemError& error) {
        return error.offset;
    } catch (const Truncated& error) {
        return error.offset;
    } catch (...) {
        return 0;
    }
}

}  // namespace fastio
