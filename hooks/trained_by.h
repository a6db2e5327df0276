// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The model and the stepper of a session for a torch::nn::Module and its optimizers.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "hooks/job.h"
#include "hooks/module_model.h"
#include "hooks/optim_stepper.h"

namespace gradtune {

// The optimizers and the module must outlive the session. `fragment`: of the module.
inline MakeTrained trained_by(std::vector<torch::optim::Optimizer*> optimizers, torch::nn::Module& module,
                              Arrival arrival = Arrival::hooks, const Fragment& fragment = {}) {
  return [optimizers = std::move(optimizers), &module, arrival, fragment](const Settings& settings) {
    Trained trained;
    trained.model = model_of(fragment, settings.broadcast_buffers, settings.ignored,
                             [&](auto... given) { return std::make_unique<ModuleModel>(module, given...); });
    trained.fragment = fragment;
    trained.stepper = std::make_unique<OptimStepper>(optimizers);
    trained.arrival = arrival;
    return trained;
  };
}

}  // namespace gradtune
