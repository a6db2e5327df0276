// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>

#include "gradtune/gradtune.h"
#include "hooks/c10d_communicator.h"
#include "hooks/launcher.h"
#include "hooks/roll_call.h"

namespace gradtune {
namespace {

c10::intrusive_ptr<c10d::Store> make_store(const LaunchInfo& info, std::chrono::milliseconds timeout) {
  if (info.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.isServer = info.rank == 0 && !info.agent_store;
  options.waitWorkers = false;  // who is missing is found out, and named, by the roll call
  options.timeout = timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(info.master_address, options);
    // Restarts under one agent's store must not read what the attempt before left there.
    const std::string attempt = environment_variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
    return c10::make_intrusive<c10d::PrefixStore>("gradtune/" + attempt, store);
  } catch (const std::exception& caught) {
    const std::string reason(caught.what());
    throw core::Exception({core::Error::Code::lost, "gradtune: rank " + std::to_string(info.rank) + ": no store at " +
                                                        info.master_address + ":" + std::to_string(info.master_port) +
                                                        ", where " +
                                                        (info.agent_store ? "torchrun's agent" : "rank 0") +
                                                        " should answer: " + reason.substr(0, reason.find('\n'))});
  }
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> init_process_group(double timeout_s) {
  const LaunchInfo info = launch_info(environment_variable).value();
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  const c10::intrusive_ptr<c10d::Store> store = make_store(info, timeout);
  await_all(store, "join", info.rank, info.world_size, timeout.count()).value();
  auto gloo = make_gloo_backend("group", store, info.rank, info.world_size, timeout.count(), /*threads=*/2);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, info.rank, info.world_size);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace gradtune
