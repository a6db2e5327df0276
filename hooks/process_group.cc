// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <optional>

#include "gradtune/gradtune.h"
#include "hooks/c10d_communicator.h"
#include "hooks/launcher.h"
#include "hooks/roll_call.h"
#include "hooks/within.h"

namespace gradtune {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

milliseconds left_until(Clock::time_point deadline) {
  return std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
}

bool is_server(const LaunchInfo& info) { return info.rank == 0 && !info.agent_store; }

c10::intrusive_ptr<c10d::Store> make_store(const LaunchInfo& info, milliseconds timeout) {
  if (info.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.isServer = is_server(info);
  options.waitWorkers = false;  // who is missing is found out, and named, by the roll call
  options.timeout = timeout;
  const auto store = within(timeout, [address = info.master_address, options] {
    return c10::make_intrusive<c10d::TCPStore>(address, options);
  });
  if (store) {
    // Restarts under one agent's store must not read what the attempt before left there.
    const std::string attempt = environment_variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
    return c10::make_intrusive<c10d::PrefixStore>("gradtune/" + attempt, store.value());
  }
  const core::Error& error = store.error();
  throw core::Exception(
      {core::Error::Code::lost,
       "gradtune: rank " + std::to_string(info.rank) + ": no store at " + info.master_address + ":" +
           std::to_string(info.master_port) + ", where " + (info.agent_store ? "torchrun's agent" : "rank 0") +
           " should answer: " + (error.code == core::Error::Code::timeout ? "it does not answer" : error.message)});
}

c10::intrusive_ptr<c10d::ProcessGroup> connect_group(const LaunchInfo& info,
                                                     const c10::intrusive_ptr<c10d::Store>& store,
                                                     milliseconds timeout) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, info.rank, info.world_size);
  try {
    auto gloo = make_gloo_backend("group", store, info.rank, info.world_size, timeout.count(), /*threads=*/2);
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
  } catch (const core::Exception& error) {
    throw core::Exception({error.code(), "gradtune: rank " + std::to_string(info.rank) + ": " + error.what()});
  }
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> init_process_group(double timeout_s) {
  const LaunchInfo info = launch_info(environment_variable).value();
  const auto timeout = milliseconds(static_cast<int64_t>(timeout_s * 1000));
  const auto deadline = Clock::now() + timeout;
  // A client comes again where its connection to the store is served by nobody or got lost, or was to another store, one
  // that just ended at that port. Only rank 0 can be the server, and it would not get its own port twice.
  const milliseconds share = is_server(info) ? timeout : std::max(timeout / 5, std::min(milliseconds(1000), timeout));
  for (milliseconds left = timeout;;) {
    std::optional<RollCall> roll_call;
    try {
      const c10::intrusive_ptr<c10d::Store> store = make_store(info, std::min(share, left));
      roll_call.emplace(store, info.rank, info.world_size, left.count());
      roll_call->await_all("join", "here").value();
      return connect_group(info, store, left);
    } catch (const core::Exception&) {
      left = left_until(deadline);
      if (is_server(info) || left.count() <= 0 || (roll_call && roll_call->is_known("join"))) throw;
    }
  }
}

}  // namespace gradtune
