// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/measurement.h"

namespace gradtune::core {

std::string_view to_string(Excess::Kind kind) {
  switch (kind) {
    case Excess::Kind::none: return "none";
    case Excess::Kind::error: return "error";
    case Excess::Kind::residual: return "residual";
  }
  return "unknown";
}

}  // namespace gradtune::core
