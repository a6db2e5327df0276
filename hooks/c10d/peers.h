// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The other ranks of a job: gradtune's own communicators (for gradients, over all ranks and over levels; for
// control), the store, and error messages that name ranks. The user's group is not used for collectives: they would
// interleave with the user's own in an order that differs between ranks.
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
#include "hooks/c10d/transport.h"
#include "hooks/c10d/watch.h"
#include "policies/cost/cost_table.h"

namespace gradtune {

// The carrier of gradients. All ranks must have the same transport.
struct Carrier {
  TransportChoice choice = {};
  QueueStream* stream = nullptr;  // for NCCL, else null
};

class Peers {
 public:
  // `mine`: an error means that this rank cannot take part; it is sent to the other ranks and thrown.
  // `alarm_before`: the alarm of a wrap that this one ends, polled during waits; may be null. `interrupted`: polled
  // on the waiting thread whenever this rank waits; an error ends the wait. `say`: gets lines about the ranks that
  // this one waits for in wrap; empty: no output.
  Peers(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options, int64_t timeout_ms,
        const core::Clock& clock, const core::Status& mine, const std::function<core::Status()>* alarm_before,
        std::function<core::Status()> interrupted, const Carrier& carrier, WaitingLine::Say say);
  ~Peers();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const policies::Machine& machine() const { return machine_; }
  comm::Groups groups() const { return {seat_, *data_, *control_, intra_.get(), inter_.get()}; }

  // Collectives over the control communicator; they throw core::Exception.
  void broadcast(std::byte* data, int64_t bytes, int root = 0);
  std::string broadcast_text(const std::string& text, int root = 0);  // the text of `root`
  // The file as rank 0 reads it. If rank 0 cannot, all ranks throw its error and name the purpose, `needed_for`.
  std::string broadcast_file(const std::string& path, int64_t most_bytes, const std::string& needed_for);
  std::vector<uint64_t> gather(uint64_t value);
  void max(std::vector<uint8_t>& values);
  void sum(std::span<float> values);

  // Ends with one error on all ranks unless all give the same text (shared_state.h). It names the ranks that differ
  // from rank 0, the thing and the property.
  void must_agree(const std::string& what, const std::string& text);

  // Ends with an error on all ranks unless all ranks succeeded. It says what went wrong on the first rank that
  // failed.
  void must_succeed(const std::string& what, const core::Status& mine);

  // The network whose state can be read: GRADTUNE_NETWORK (examples/cluster), "pacing,..." or "none".
  const std::string& network() const { return network_; }

  // Records that this rank makes a call that all ranks make.
  void enter(Call call, int64_t step) { watch_.enter(call, step); }

  // An error if another rank has reported a failure or makes another call than this one, or if this rank is
  // interrupted. Never blocks: it returns the last known state.
  core::Status alarm() {
    if (core::Status go_on = interrupted_(); !go_on) return go_on;
    return watch_.ask();
  }

  // The message for an error of this rank at that step, with the rank that is suspected. It tells the other ranks
  // that this one failed, and waits for their reports for a part of the timeout.
  std::string explain(const core::Error& error, int64_t step);
  void leave(int64_t step);

  // Ends the communicators; at once if something failed. The executor must be stopped before. If another rank failed
  // first, this waits until that rank's process has ended, or some seconds.
  void close(bool failed);

 private:
  core::Status run(const comm::Collective& collective);  // over the control communicator; ends when the alarm is raised

  void connect(const Options& options, const core::Clock& clock);
  static void check_transports(const std::vector<std::string>& of_ranks);
  std::string limit_text() const;
  void tell_failure(const core::Error& error);
  // A communicator for gradients over `size` ranks, in which this one has number `rank`.
  std::unique_ptr<comm::Communicator> make_data(const Options& options, const std::string& name, int rank, int size,
                                                int threads);
  // The same for memory of the host.
  std::unique_ptr<comm::Communicator> make(const Options& options, const std::string& name, int rank, int size,
                                           int threads);
  void make_levels(const Options& options);
  double share_of_cores();

  const int rank_, size_;
  const int64_t timeout_ms_;
  const std::function<core::Status()> interrupted_;
  QueueStream* const collectives_;
  c10::intrusive_ptr<c10d::Store> store_;  // with a prefix for this wrap
  RollCall roll_call_;
  Watch watch_;
  std::string network_;
  std::shared_ptr<comm::PacedLink> link_;  // if GRADTUNE_PACING_MBIT is set
  std::unique_ptr<comm::Communicator> data_, control_;
  std::string failed_process_;  // the process of the rank whose failure made this one fail; empty: none
  core::Seat seat_;
  std::unique_ptr<comm::Communicator> intra_, inter_;  // if there are levels
  policies::Machine machine_;
};

}  // namespace gradtune
