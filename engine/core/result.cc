// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/result.h"

#include <new>

namespace gradtune::core {

std::string_view to_string(Error::Code code) {
  switch (code) {
    case Error::Code::invalid: return "invalid";
    case Error::Code::mismatch: return "mismatch";
    case Error::Code::timeout: return "timeout";
    case Error::Code::lost: return "lost";
    case Error::Code::corrupt: return "corrupt";
    case Error::Code::io: return "io";
    case Error::Code::peer: return "peer";
  }
  return "unknown";
}

void fail_check(std::string_view what, const std::source_location& where) {
  throw ProgramError(std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " + std::string(what));
}

namespace {

constexpr const char* kNoMemory = "out of memory";  // short enough to need no allocation

Error error_of_current() {
  try {
    throw;
  } catch (const Exception& exception) {
    return {exception.code(), exception.what()};
  } catch (const std::logic_error& error) {  // a programmer's
    return {Error::Code::invalid, error.what()};
  } catch (const std::bad_alloc&) {
    return {Error::Code::io, kNoMemory};
  } catch (const std::exception& exception) {
    return {Error::Code::io, exception.what()};
  } catch (...) {
    return {Error::Code::io, "something was thrown that is no exception"};
  }
}

}  // namespace

Error copy_of(const Error& error) noexcept {
  try {
    return error;
  } catch (...) {
    return {Error::Code::io, kNoMemory};
  }
}

Error caught_error(std::string_view where) noexcept {
  try {
    Error error = error_of_current();
    if (!where.empty()) error.message = std::string(where) + ": " + error.message;
    return error;
  } catch (...) {
    return {Error::Code::io, kNoMemory};
  }
}

}  // namespace gradtune::core
