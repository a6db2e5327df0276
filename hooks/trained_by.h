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

// The optimizers and the module must outlive the session.
inline MakeTrained trained_by(std::vector<torch::optim::Optimizer*> optimizers, torch::nn::Module& module,
                              Arrival arrival = Arrival::hooks) {
  return [optimizers = std::move(optimizers), &module, arrival](const Settings& settings) {
    Trained trained;
    trained.model = std::make_unique<ModuleModel>(module, settings.broadcast_buffers, settings.ignored);
    trained.stepper = std::make_unique<OptimStepper>(optimizers);
    trained.arrival = arrival;
    return trained;
  };
}

}  // namespace gradtune
