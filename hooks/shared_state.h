// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What ranks must have alike, as things with properties that can be compared (c10d/comparison.h).
#pragma once

#include <vector>

#include "hooks/c10d/comparison.h"
#include "hooks/model.h"
#include "hooks/options.h"
#include "hooks/stepper.h"

namespace gradtune {

std::vector<SharedThing> describe(const Settings& settings);
// Strides are those of the memory that gradients lie in. A dimension of one element has none. The kind of device that
// gradients are on decides how a program lays out what ranks exchange. Parameters that are a rank's own are left out,
// and so are groups of nothing else.
std::vector<SharedThing> describe(const Model& model, const Stepper& stepper);
std::vector<SharedThing> describe_buffers(const Model& model);

}  // namespace gradtune
