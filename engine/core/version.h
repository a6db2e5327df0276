// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The version of this gradtune, for the files that it writes and for people.
#pragma once

#include <string_view>

namespace gradtune::core {

std::string_view version();  // "0.1.0"

}  // namespace gradtune::core
