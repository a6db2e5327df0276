// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What optimizers can not be combined with. Errors name the optimizer and what is allowed.
#pragma once

#include <torch/optim/optimizer.h>

#include <span>

#include "engine/core/compressor.h"

namespace gradtune {

// Those that need more than the gradients of one backward pass are refused.
torch::optim::Optimizer& check_optimizer(torch::optim::Optimizer& optimizer);

// A compressor that has the optimizer's momentum inside (DGC) is refused where the optimizer has momentum as well: it
// would count twice.
void check_momentum(const torch::optim::Optimizer& optimizer, std::span<const core::CompressorSpec> codecs);

}  // namespace gradtune
