// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Refuses input that cannot be used: throws an error that begins with the library's name.
#pragma once

#include <string>

#include "engine/core/result.h"

namespace gradtune {

inline core::Error invalid(const std::string& message) { return {core::Error::Code::invalid, "gradtune: " + message}; }

[[noreturn]] inline void refuse(const std::string& message) { throw core::Exception(invalid(message)); }

}  // namespace gradtune
