// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/placement.h"

#include "engine/exec/device.h"

namespace gradtune::exec {

core::Place Placement::place_of(const core::Step& step) const {
  if (core::is_collective(step.kind)) return own_place();
  const bool has_kernel = codecs_[step.codec][gradient_] != nullptr;
  return has_kernel ? step.place : core::Place::host;
}

core::Place Placement::own_place() const {
  const bool has_kernels = gradient_ == core::Space::host || platform_.device->kernels() != nullptr;
  return has_kernels ? core::Place::device : core::Place::host;
}

}  // namespace gradtune::exec
