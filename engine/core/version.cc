// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/version.h"

namespace gradtune::core {

std::string_view version() { return GRADTUNE_VERSION; }

}  // namespace gradtune::core
