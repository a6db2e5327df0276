// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The wrapped objects of one rank: model, stepper, options and gradients, and the device that they are on. If one of
// them cannot be had, `status` says why and the rest may be missing. The session sends that error to all ranks.
#pragma once

#include <functional>
#include <memory>

#include "engine/core/clock.h"
#include "engine/core/result.h"
#include "engine/exec/device.h"
#include "gradtune/gradtune.h"
#include "hooks/c10d/nccl_group.h"
#include "hooks/c10d/transport.h"
#include "hooks/fragment.h"
#include "hooks/gradients.h"
#include "hooks/model.h"
#include "hooks/options.h"
#include "hooks/stepper.h"
#include "hooks/warnings.h"
#include "tuner/error_budget.h"

namespace gradtune {

// The model and its stepper.
struct Trained {
  std::unique_ptr<Model> model;
  std::unique_ptr<Stepper> stepper;
  Arrival arrival = Arrival::hooks;
  // Gradients become sums over ranks, not averages, and all ranks must have the same ones in each pass.
  bool sums = false;
  Fragment fragment = {};  // the part of the program's model that the model here is
  // Makes the kernels for a device; null: gradtune's own.
  std::function<std::unique_ptr<exec::Kernels>(c10::Device device)> make_kernels = {};
};

using MakeTrained = std::function<Trained(const Settings& settings)>;

struct Job {
  // Calls `make` once. Its exception becomes `status`.
  Job(const MakeTrained& make, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options,
      const core::Clock& clock, Warnings& warnings);

  Settings settings;
  tuner::ErrorBudget::Limits limits;
  std::unique_ptr<Model> model;
  std::unique_ptr<Stepper> stepper;
  Arrival arrival = Arrival::hooks;
  bool sums = false;
  Fragment fragment;
  std::shared_ptr<exec::Device> device;      // null if gradients are on the host
  TransportChoice transport;                 // of gradients
  std::unique_ptr<QueueStream> collectives;  // the stream for NCCL; null if it is not used
  std::unique_ptr<Gradients> gradients;
  core::Status status;
};

}  // namespace gradtune
