// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/failure.h"

#include <utility>

namespace gradtune::exec {

void Failure::note(core::Error error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (has_happened_) return;
    error_ = std::move(error);
    has_happened_ = true;
  }
  bell_.ring();
}

core::Error Failure::error() {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace gradtune::exec
