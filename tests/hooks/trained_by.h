// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The parts of a session, for tests that make one without wrap().
#pragma once

#include <memory>
#include <vector>

#include "hooks/module_model.h"
#include "hooks/optim_stepper.h"
#include "hooks/session.h"

namespace gradtune::test {

// The optimizer and the module must outlive the session.
inline MakeTrained trained_by(torch::optim::Optimizer& optimizer, torch::nn::Module& module) {
  return [&](const Settings& settings) {
    Trained trained;
    trained.model = std::make_unique<ModuleModel>(module, settings.broadcast_buffers);
    trained.stepper = std::make_unique<OptimStepper>(std::vector<torch::optim::Optimizer*>{&optimizer});
    return trained;
  };
}

}  // namespace gradtune::test
