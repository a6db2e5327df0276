// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The state of an optimizer after gradients that were NaN or infinite: without this, moments stay so for ever.
#pragma once

#include <torch/optim/optimizer.h>

namespace gradtune {

// Sets what is not finite in the state to 0, for the classes of LibTorch.
void make_state_finite(torch::optim::Optimizer& optimizer);

}  // namespace gradtune
