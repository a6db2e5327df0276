// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Converts exceptions of other libraries to errors of gradtune: one line, without the stack trace that c10 appends.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "engine/core/result.h"

namespace gradtune {

// Without the prefix "gradtune: ", which the code that throws the error adds.
inline core::Error error_of(const std::exception& caught) {
  using Code = core::Error::Code;
  const auto* const known = dynamic_cast<const core::Exception*>(&caught);
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&caught) != nullptr;
  std::string text = no_memory ? "the system has no more memory" : caught.what();
  if (known == nullptr) text = text.substr(0, text.find('\n'));
  constexpr std::string_view kPrefix = "gradtune: ";
  if (text.starts_with(kPrefix)) text.erase(0, kPrefix.size());
  return {known != nullptr ? known->code() : no_memory ? Code::io : Code::invalid, text};
}

}  // namespace gradtune
