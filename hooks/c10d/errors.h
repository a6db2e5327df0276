// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What others throw, as errors of gradtune: one line, without the stack that c10 puts behind it.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "engine/core/result.h"

namespace gradtune {

// Without the prefix "gradtune: ", which whoever throws the error puts in front.
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
