// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The state that must be equal on all ranks, as things with properties that can be compared (c10d/comparison.h).
#pragma once

#include <vector>

#include "hooks/c10d/comparison.h"
#include "hooks/model.h"
#include "hooks/options.h"
#include "hooks/stepper.h"

namespace gradtune {

std::vector<SharedThing> describe(const Settings& settings);
// Strides are those of the gradients' memory; a dimension of size one has none. The kind of device is included,
// because it decides the layout of the data that ranks exchange. Parameters that belong to one rank are left out,
// and so are groups that hold only such parameters.
std::vector<SharedThing> describe(const Model& model, const Stepper& stepper);
std::vector<SharedThing> describe_buffers(const Model& model);

}  // namespace gradtune
