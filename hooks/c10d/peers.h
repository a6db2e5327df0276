// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The other ranks of a job, as gradtune talks to them: communicators of its own (gradients, over all ranks and over
// levels; control), the store, and how failures are put into words that name ranks. The group of the user is not used
// for collectives: they would interleave with the user's own in an order that differs between ranks.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/groups.h"
#include "engine/comm/pacing.h"
#include "engine/core/clock.h"
#include "gradtune/gradtune.h"
#include "hooks/c10d/nccl_group.h"
#include "hooks/c10d/roll_call.h"
#include "hooks/c10d/watch.h"
#include "policies/cost/cost_table.h"

namespace gradtune {

class Peers {
 public:
  // `mine`: whether this rank can take part; an error is told to the others and thrown. `alarm_before`: of a wrap that
  // this one ends, asked while others are waited for; may be null. `interrupted`: asked whenever this rank waits, on
  // its own thread; an error of it ends the wait. `collectives`: gradients go over NCCL, on that stream; null: over
  // Gloo. `say`: gets lines about whom this rank waits for in wrap; empty: nobody is told.
  Peers(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options, int64_t timeout_ms,
      const core::Clock& clock, const core::Status& mine, const std::function<core::Status()>* alarm_before = nullptr,
      std::function<core::Status()> interrupted = [] { return core::Status(); }, QueueStream* collectives = nullptr,
      WaitingLine::Say say = {});
  ~Peers();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const policies::Machine& machine() const { return machine_; }
  comm::Groups groups() const { return {seat_, *data_, *control_, intra_.get(), inter_.get()}; }

  // Over the control communicator, by all ranks; throws core::Exception.
  void broadcast(std::byte* data, int64_t bytes, int root = 0);
  std::string broadcast_text(const std::string& text, int root = 0);  // that rank's
  // As rank 0 reads it. Where it can not, all throw that, and for what it was needed.
  std::string broadcast_file(const std::string& path, int64_t most_bytes, const std::string& needed_for);
  std::vector<uint64_t> gather(uint64_t value);
  void max(std::vector<uint8_t>& values);
  void sum(std::span<float> values);

  // Ends with one error on all ranks, which names those that differ from rank 0, the thing and the property, unless all
  // give the same text (shared_state.h).
  void must_agree(const std::string& what, const std::string& text);

  // Ends with an error on all ranks, which says what went wrong on the first rank that could not, unless all could.
  void must_succeed(const std::string& what, const core::Status& mine);

  // The network that reports state: GRADTUNE_NETWORK (examples/cluster), "pacing,..." or "none".
  const std::string& network() const { return network_; }

  // This rank makes a call that all ranks make.
  void enter(Call call, int64_t step) { watch_.enter(call, step); }

  // An error when another rank has told that it failed, or makes another call than this one, or this rank is
  // interrupted. Never blocks: it is what was known a moment ago.
  core::Status alarm() {
    if (core::Status go_on = interrupted_(); !go_on) return go_on;
    return watch_.ask();
  }

  // The message for an error of this rank at that step, with the peer that is suspected. Tells the others that this
  // rank failed; waits for theirs for a part of the time limit.
  std::string explain(const core::Error& error, int64_t step);
  void leave(int64_t step);

  // Ends the communicators, at once when something failed. The executor has to be stopped before. Where another rank
  // failed first, its process ends before this returns, or some seconds pass.
  void close(bool failed);

 private:
  core::Status run(const comm::Collective& collective);  // over the control communicator; ends when the alarm is raised

  void connect(const Options& options, const core::Clock& clock);
  std::string limit_text() const;
  void tell_failure(const core::Error& error);
  // Of gradients: over `size` ranks, of which this one is number `rank`.
  std::unique_ptr<comm::Communicator> make_data(const Options& options, const std::string& name, int rank, int size,
                                                int threads);
  // Of the host.
  std::unique_ptr<comm::Communicator> make(const Options& options, const std::string& name, int rank, int size,
                                           int threads);
  void make_levels(const Options& options);
  double share_of_cores();

  const int rank_, size_;
  const int64_t timeout_ms_;
  const std::function<core::Status()> interrupted_;
  QueueStream* const collectives_;
  c10::intrusive_ptr<c10d::Store> store_;  // with a prefix of this wrap
  RollCall roll_call_;
  Watch watch_;
  std::string network_;
  std::shared_ptr<comm::PacedLink> link_;  // where GRADTUNE_PACING_MBIT asks for one
  std::unique_ptr<comm::Communicator> data_, control_;
  std::string failed_process_;  // of the rank that told why this one fails; empty: none did
  core::Seat seat_;
  std::unique_ptr<comm::Communicator> intra_, inter_;  // where there are levels
  policies::Machine machine_;
};

}  // namespace gradtune
