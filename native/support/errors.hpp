// What can go wrong while bytes move. bindings/module.cpp turns these into the classes of fastio.errors.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace fastio {

// A system call failed. The errno is the kernel's own.
struct SystemError : std::exception {
    int error;
    std::string operation;
    uint64_t offset;

    SystemError(int error, std::string operation, uint64_t offset)
        : error(error), operation(std::move(operation)), offset(offset) {}
    const char* what() const noexcept override { return operation.c_str(); }
};

// This request cannot be done this way here; another transport may do it.
struct Refused : std::exception {
    std::string reason;

    explicit Refused(std::string reason) : reason(std::move(reason)) {}
    const char* what() const noexcept override { return reason.c_str(); }
};

// The file ended before the bytes that its own directory promises.
struct Truncated : std::exception {
    uint64_t offset;

    explicit Truncated(uint64_t offset) : offset(offset) {}
    const char* what() const noexcept override { return "the file is too short"; }
};

// The byte of the file that a failure is about; 0 where it is about none.
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
