// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Two kinds of errors, and only two. A programmer's error (a broken precondition) is a `check` that throws ProgramError
// with file and line. An expected failure (bad input, a lost peer) is a value: Error inside Result<T>; whoever cannot
// go on turns it into an Exception with `value()`.
#pragma once

#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace gradtune::core {

struct Error {
  enum class Code : uint8_t {
    invalid,   // input that names something unknown, or lies outside the allowed range
    mismatch,  // ranks, a file and a job, or a strategy and a model do not agree
    timeout,   // a deadline passed
    lost,      // a peer died or closed its connection
    corrupt,   // a payload or a file that does not parse
    io,        // the operating system said no
    peer,      // another rank reported a failure there, or makes another call
  };
  Code code;
  std::string message;  // a full sentence: what was wrong, and what is allowed
};

std::string_view to_string(Error::Code code);

// The form in which an error reaches the user if no caller in between could handle it.
class Exception : public std::runtime_error {
 public:
  explicit Exception(const Error& error) : std::runtime_error(error.message), code_(error.code) {}
  Error::Code code() const { return code_; }

 private:
  Error::Code code_;
};

class ProgramError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_check(std::string_view what, const std::source_location& where);

// Throws ProgramError when a precondition of ours does not hold; stays in release builds.
inline void check(bool holds, std::string_view what, std::source_location where = std::source_location::current()) {
  if (!holds) [[unlikely]]
    fail_check(what, where);
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return std::get<1>(state_); }

  // Throws Exception if there is no value.
  T& value() & { return throw_unless_ok(), std::get<0>(state_); }
  const T& value() const& { return throw_unless_ok(), std::get<0>(state_); }
  T&& value() && { return throw_unless_ok(), std::get<0>(std::move(state_)); }

 private:
  void throw_unless_ok() const {
    if (!ok()) throw Exception(error());
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const { return error_; }
  void value() const {
    if (!ok_) throw Exception(error_);
  }

 private:
  Error error_{};
  bool ok_ = true;
};

using Status = Result<void>;

// In a catch block: the exception being handled, as an Error "WHERE: its message". An Exception keeps its code;
// `where` may be empty. If there is no memory for the message, the error says so, which needs no memory.
Error caught_error(std::string_view where) noexcept;

// A copy; if there is no memory for it, an error that says so.
Error copy_of(const Error& error) noexcept;

}  // namespace gradtune::core
