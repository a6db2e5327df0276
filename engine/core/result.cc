// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/result.h"

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

}  // namespace gradtune::core
