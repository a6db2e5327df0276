// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>

#include "engine/compress/compressor.h"
#include "hooks/c10d/errors.h"
#include "hooks/c10d/launcher.h"
#include "hooks/c10d/torch_versions.h"
#include "hooks/device_kernels.h"
#include "hooks/shared_state.h"
#include "hooks/stream_device.h"

namespace gradtune {
namespace {

// Null if there are no kernels; then the host compresses gradients.
std::unique_ptr<exec::Kernels> make_kernels(const Trained& trained, c10::Device where, Warnings& warnings) {
  if (trained.make_kernels) return trained.make_kernels(where);
  auto kernels = kernels_for(where);
  if (kernels.ok()) return std::move(kernels).value();
  warnings.once(Warnings::Kind::no_kernels,
                "gradients on " + where.str() + " are compressed on the host: " + kernels.error().message);
  return nullptr;
}

// The timeout of the group's own collectives, the longest of its backends. If none gives one, it is the timeout of
// gradtune's groups.
std::chrono::milliseconds timeout_of(c10d::ProcessGroup& group) {
  using std::chrono::milliseconds;
  constexpr milliseconds kUnknown = std::chrono::seconds(300), kLeast{10}, kMost = std::chrono::seconds(1'000'000);
  milliseconds longest{0};
  for (const c10::Device device : group.getDeviceTypes()) {
    try {
      longest = std::max(longest, versions::timeout_of(*group.getBackend(device.type())));
    } catch (const std::exception&) {
      continue;  // c10d throws for a backend that has no timeout
    }
  }
  return longest.count() > 0 ? std::clamp(longest, kLeast, kMost) : kUnknown;
}

// The name of the group's backend for a type of device; empty if it has none.
std::string backend_of(c10d::ProcessGroup& group, c10::DeviceType type) {
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = group.getBackend(type);
  } catch (const std::exception&) {
    return {};
  }
  try {
    return backend->getBackendName();
  } catch (const std::exception&) {
    return "without a name";
  }
}

TransportFacts transport_facts(const Settings& settings, const Options& options, c10d::ProcessGroup& group,
                               c10::DeviceType type) {
  return {.option = settings.collectives,
          .device = c10::DeviceTypeName(type, /*lower_case=*/true),
          .backend = backend_of(group, type),
          .has_make_group = options.make_group != nullptr,
          .is_paced = environment_variable("GRADTUNE_PACING_MBIT").has_value(),
          .no_nccl = std::string(versions::kNoStreams)};
}

// Fragments write files of their own, and the first one speaks for all.
void name_files(const Fragment& fragment, Settings& settings) {
  if (fragment.is_first()) return;
  settings.quiet = true;
  settings.journal = files_of(fragment, settings.journal);
  settings.strategy = files_of(fragment, settings.strategy);
}

}  // namespace

Job::Job(const MakeTrained& make, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options,
         const core::Clock& clock, Warnings& warnings) {
  settings.timeout_ms = timeout_of(*group).count();
  try {
    settings = resolve(options, gradtune_variables(), timeout_of(*group)).value();
    Trained trained = make(settings);
    model = std::move(trained.model);
    stepper = std::move(trained.stepper);
    arrival = trained.arrival;
    sums = trained.sums;
    fragment = trained.fragment;
    name_files(fragment, settings);
    check_parameters(*stepper, *model);
    settings.codecs_from = "named";
    settings.optimizers = family_of(*stepper);
    limits = {
        .budget = settings.error_budget, .names_none = settings.codecs.empty(), .optimizers = settings.optimizers};
    if (limits.names_none) {
      settings.codecs = core::default_list(settings.fidelity, settings.optimizers, compress::known_traits());
      settings.codecs_from = "default list of " + std::string(core::to_string(settings.fidelity)) + " for " +
                             (settings.optimizers == core::OptimizerFamily::sgd ? "SGD" : "adaptive optimizers");
    }
    check_momentum(*stepper, settings.codecs);
    const auto no_overlap = [&](const std::string& why) {
      warnings.once(Warnings::Kind::no_overlap, "forward_overlap is off for this job: " + why);
      settings.forward_overlap = false;  // so that no strategy plans with it
    };
    if (settings.forward_overlap) {
      if (core::Status can = stepper->can_be_split(/*has_closure=*/false); !can)
        no_overlap(error_of(core::Exception(can.error())).message);
    }
    const c10::Device where = device_of(model->parameters());
    transport = choose_transport(transport_facts(settings, options, *group, where.type())).value();
    if (!where.is_cpu()) {
      device = make_stream_device(where, make_kernels(trained, where, warnings), clock);
      if (transport.transport == Transport::nccl) collectives = std::make_unique<QueueStream>(*device, where);
      if (settings.forward_overlap) no_overlap("it is not for parameters on " + where.str());
    }
    gradients = std::make_unique<Gradients>(*model, stepper->identity(), warnings, arrival, device);
  } catch (const std::exception& caught) {
    status = error_of(caught);
    if (options.timeout && !std::isnan(*options.timeout)) {
      settings.timeout_ms = std::llround(1000 * std::clamp(*options.timeout, 0.01, 1e6));
    }
  }
}

}  // namespace gradtune
