// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <optional>
#include <sstream>
#include <string>

#include "gradtune/gradtune.h"
#include "hooks/c10d/communicator.h"
#include "hooks/c10d/gloo_exchange.h"
#include "hooks/c10d/gloo_options.h"
#include "hooks/c10d/launcher.h"
#include "hooks/c10d/port_holder.h"
#include "hooks/c10d/roll_call.h"
#include "hooks/c10d/waiting_line.h"
#include "hooks/c10d/with_deadline.h"

namespace gradtune {
namespace {

using core::Error;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Store = c10::intrusive_ptr<c10d::Store>;

std::string name_of(const LaunchInfo& info) { return "gradtune: rank " + std::to_string(info.rank); }

core::Result<milliseconds> time_limit(double timeout_s) {
  constexpr double kLeastS = 0.01, kMostS = 1e6;
  if (timeout_s >= kLeastS && timeout_s <= kMostS) return milliseconds(std::llround(timeout_s * 1000));
  std::ostringstream text;
  text << "gradtune: init_process_group: timeout_s is " << timeout_s << "; allowed is a number of seconds from "
       << kLeastS << " to " << kMostS;
  return Error{Error::Code::invalid, text.str()};
}

// Throws this rank's own error at once, before other ranks wait for it.
LaunchInfo usable_launch() {
  auto info = launch_info(environment_variable);
  if (!info) throw core::Exception({info.error().code, "gradtune: " + info.error().message});
  const core::Status usable = check_interfaces(environment_variable);
  if (!usable) throw core::Exception({usable.error().code, name_of(info.value()) + ": " + usable.error().message});
  return info.value();
}

bool is_server(const LaunchInfo& info) { return info.rank == 0 && !info.agent_store; }

// Names the process that holds the port that rank 0 could not get; empty if the failure has another cause.
std::string why_taken(const LaunchInfo& info, const std::string& message) {
  const bool is_taken = message.find("EADDRINUSE") != std::string::npos || message.find("in use") != std::string::npos;
  if (!is_server(info) || !is_taken) return "";
  const auto holder = port_holder(static_cast<uint16_t>(info.master_port));
  std::ostringstream why;
  why << "port " << info.master_port << " is held by ";
  if (!holder) {
    why << "another process, which this one may not see";
  } else if (holder->is_this_process) {
    why << "this process itself, by a store or server that is not gradtune's";
  } else {
    why << "another process, " << holder->pid << " (" << holder->name << ')';
  }
  why << "; end that one first, or choose another MASTER_PORT";
  return why.str();
}

// There are no options here, so the option's variable is read.
WaitingLine::Say say_to_people() {
  if (environment_variable("GRADTUNE_QUIET") == "true") return {};
  return [](const std::string& line) { std::fputs(line.c_str(), stderr); };
}

Store make_store(const LaunchInfo& info, milliseconds timeout, WaitingLine& line) {
  if (info.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.isServer = is_server(info);
  options.multiTenant = true;   // groups of one process that live at the same time share its server
  options.waitWorkers = false;  // the roll call finds and names missing ranks
  options.timeout = timeout;
  // Rank 0 makes the store and waits for no rank here.
  const std::string waits = "rank " + std::to_string(info.rank) + " waits for the store of " +
                            (info.agent_store ? "torchrun's agent" : "rank 0") + " at " + info.master_address + ":" +
                            std::to_string(info.master_port);
  const auto store = with_deadline(
      timeout,
      [address = info.master_address, options] { return c10::make_intrusive<c10d::TCPStore>(address, options); },
      [&] {
        line.tick(info.rank <= 1 ? waits : std::string());
        return core::Status();
      });
  if (store) {
    // Restarts under one agent's store must not read the keys of the attempt before.
    const std::string attempt = environment_variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
    return c10::make_intrusive<c10d::PrefixStore>("gradtune/" + attempt, store.value());
  }
  const Error& error = store.error();
  const bool is_silent = error.code == Error::Code::timeout;
  const std::string taken = is_silent ? "" : why_taken(info, error.message);
  throw core::Exception({Error::Code::lost, name_of(info) + ": no store at " + info.master_address + ":" +
                                                std::to_string(info.master_port) + ", where " +
                                                (info.agent_store ? "torchrun's agent" : "rank 0") +
                                                " should answer: " +
                                                (is_silent        ? "it does not answer"
                                                 : !taken.empty() ? taken
                                                                  : error.message)});
}

// A store may outlive a group (torchrun's agent's store does), and the next group must not read its keys, so groups
// are numbered. Each rank counts only the groups that all ranks joined. So all ranks count alike, and a rank that
// tries again after a failed attempt has the same number.
class GroupNumber {
 public:
  GroupNumber(Store store, const LaunchInfo& info, milliseconds timeout)
      : store_(std::move(store)), info_(info), timeout_(timeout), number_(add(0)) {}

  Store store() const { return c10::make_intrusive<c10d::PrefixStore>(std::to_string(number_), store_); }
  void all_came() const { add(1); }

 private:
  int64_t add(int64_t more) const {
    const auto counted = with_deadline(timeout_, [store = store_, key = "inits/" + std::to_string(info_.rank), more] {
      return store->add(key, more);
    });
    if (counted) return counted.value();
    throw core::Exception(
        {Error::Code::lost, name_of(info_) + ": the store does not answer at \"inits\": " + counted.error().message});
  }

  const Store store_;
  const LaunchInfo& info_;
  const milliseconds timeout_;
  const int64_t number_;
};

// Each rank gets the world size from its own environment. A rank with another value would make the others wait for
// ranks that nobody starts.
void check_sizes(const LaunchInfo& info, const std::vector<std::string>& sizes, RollCall& roll_call) {
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank] == std::to_string(info.world_size)) continue;
    const Error error{Error::Code::mismatch, "the number of ranks is " + std::to_string(info.world_size) + " on rank " +
                                                 std::to_string(info.rank) + " and " + sizes[rank] + " on rank " +
                                                 std::to_string(rank) + "; start all with the same WORLD_SIZE"};
    roll_call.raise_alarm(error);
    throw core::Exception({error.code, name_of(info) + ": " + error.message});
  }
}

c10::intrusive_ptr<c10d::ProcessGroup> connect_group(const LaunchInfo& info, const Store& store, milliseconds timeout,
                                                     milliseconds left) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, info.rank, info.world_size);
  try {
    auto gloo = make_gloo_backend("group", store, info.rank, info.world_size, timeout.count(), /*threads=*/2,
                                  /*connect_within_ms=*/left.count());
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
  } catch (const core::Exception& error) {
    throw core::Exception({error.code(), name_of(info) + ": " + error.what()});
  }
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

c10::intrusive_ptr<c10d::ProcessGroup> join_group(const LaunchInfo& info, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const auto left = [&] { return std::chrono::duration_cast<milliseconds>(deadline - Clock::now()); };
  // A client tries again if nobody serves its connection to the store, if it lost that connection, or if it reached
  // another store that just ended at that port. Only rank 0 can be the server, and it would not get its own port
  // twice.
  const milliseconds part = std::max(timeout / 5, std::min(milliseconds(1000), timeout));
  WaitingLine line(say_to_people());
  for (;;) {
    std::optional<RollCall> roll_call;
    try {
      const milliseconds share = is_server(info) ? timeout : std::min(part, left());
      const GroupNumber number(make_store(info, share, line), info, share);
      const Store store = number.store();
      roll_call.emplace(store, info.rank, info.world_size, left().count(), say_to_people());
      check_sizes(info, roll_call->await_all("join", std::to_string(info.world_size)).value(), *roll_call);
      number.all_came();
      // A rank that came last leaves the others little time, but then all ranks are there.
      return connect_group(info, store, timeout, std::max(left(), part));
    } catch (const core::Exception& error) {
      // Retrying does not help ranks that have different settings. The store stays until all ranks know the error.
      if (error.code() == Error::Code::mismatch || error.code() == Error::Code::peer) {
        roll_call->sign_off("failed");
        if (is_server(info)) roll_call->await_ends(/*most_ms=*/2000);
        throw;
      }
      if (is_server(info) || left().count() <= 0 || (roll_call && roll_call->is_known("join"))) throw;
    }
  }
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> init_process_group(double timeout_s) {
  try {
    if (environment_variable("TORCH_CPP_LOG_LEVEL"))
      c10::initLogging();  // as Python's torch does; nothing else initializes it
    const milliseconds timeout = time_limit(timeout_s).value();
    return join_group(usable_launch(), timeout);
  } catch (const core::Exception&) {
    throw;
  } catch (...) {  // c10d and Gloo throw exceptions that are not std::runtime_error and that contain stack traces
    const Error error = c10d_error(std::current_exception());
    throw core::Exception({error.code, "gradtune: init_process_group: " + error.message});
  }
}

}  // namespace gradtune
