// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/group.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tests/engine/comm/group_member.h"
#include "tests/engine/comm/in_process.h"

namespace gradtune::sim {
namespace {

using comm::Collective;
using comm::CompletionSink;
using core::Error;

class Group : public std::enable_shared_from_this<Group> {
 public:
  explicit Group(World& world) : world_(world), ranks_(static_cast<size_t>(world.size())) {}

  int size() const { return world_.size(); }

  void start(int rank, const Collective& collective, CompletionSink& sink, uint64_t token) {
    comm::check_legal(collective, world_.size());
    Rank& me = ranks_[static_cast<size_t>(rank)];
    const int64_t number = me.calls++;
    world_.note(rank, core::to_string(collective.kind), static_cast<uint64_t>(collective.count));
    Meeting& meeting = meetings_[number];
    meeting.calls.resize(ranks_.size());
    meeting.calls[static_cast<size_t>(rank)] = Call{collective, &sink, token};
    ++me.under_way;
    if (error_of(rank)) return tell_later(0, number, rank);
    ++meeting.joined;
    world_.after(collective.timeout_ms * 1'000'000, rank,
                 [self = shared_from_this(), number, rank] { self->time_out(number, rank); });
    if (meeting.joined == world_.size() && !ended_) begin(number, meeting);
  }

  void abort(int rank) { end(rank, {Error::Code::lost, "the communicator was aborted"}); }

  // Runs the world until nothing of this rank is under way.
  void leave(int rank) {
    const Rank& me = ranks_[static_cast<size_t>(rank)];
    while (me.under_way > 0 && !world_.crashed(rank)) core::check(world_.run_next(), "every collective ends some time");
  }

 private:
  struct Call {
    Collective collective;
    CompletionSink* sink;
    uint64_t token;
  };
  // The calls that belong together: every rank's n-th. Calls already reported are removed.
  struct Meeting {
    std::vector<std::optional<Call>> calls;
    int joined = 0;
  };
  struct Rank {
    int64_t calls = 0;
    int64_t under_way = 0;
    std::optional<Error> error;  // set once the group has ended
  };

  const std::optional<Error>& error_of(int rank) const { return ranks_[static_cast<size_t>(rank)].error; }

  void begin(int64_t number, const Meeting& meeting) {
    std::vector<Collective> calls;
    for (const std::optional<Call>& call : meeting.calls) calls.push_back(call->collective);
    if (const std::string difference = comm::first_difference(calls); !difference.empty()) {
      return end(-1, {Error::Code::mismatch, difference});
    }
    const int64_t end_ns =
        world_.reserve_links_ns(comm::link_bytes(calls[0], world_.size()),
                                core::messages(calls[0].kind, comm::ranks_of(calls[0], world_.size()).size));
    world_.at(end_ns, -1, [self = shared_from_this(), number, calls] {
      if (self->ended_) return;
      comm::move_data(calls);
      for (int rank = 0; rank < self->world_.size(); ++rank)
        self->tell_later(self->world_.draw_delay_ns(), number, rank);
    });
  }

  void time_out(int64_t number, int rank) {
    const auto found = meetings_.find(number);
    if (found == meetings_.end() || !found->second.calls[static_cast<size_t>(rank)] || error_of(rank)) return;
    const Collective& collective = found->second.calls[static_cast<size_t>(rank)]->collective;
    std::vector<int> missing;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].calls <= number) missing.push_back(static_cast<int>(r));
    }
    end(rank, comm::timed_out(collective, missing));
  }

  // Ends the group on account of `culprit`, or of all ranks if it is -1.
  void end(int culprit, const Error& error) {
    if (std::exchange(ended_, true)) return;
    for (int rank = 0; rank < world_.size(); ++rank) {
      const bool own = culprit < 0 || rank == culprit;
      const Error theirs = own ? error : comm::lost(culprit, error);
      const int64_t delay_ns = own ? 0 : world_.rank(rank).latency_ns + world_.draw_delay_ns();
      world_.after(delay_ns, rank, [self = shared_from_this(), rank, theirs] {
        self->ranks_[static_cast<size_t>(rank)].error = theirs;
        for (const auto& [number, meeting] : self->meetings_) {
          if (meeting.calls[static_cast<size_t>(rank)]) self->tell_later(0, number, rank);
        }
      });
    }
  }

  void tell_later(int64_t delay_ns, int64_t number, int rank) {
    world_.after(delay_ns, rank, [self = shared_from_this(), number, rank] { self->tell(number, rank); });
  }

  void tell(int64_t number, int rank) {
    const auto found = meetings_.find(number);
    if (found == meetings_.end()) return;
    Meeting& meeting = found->second;
    const std::optional<Call> call = std::exchange(meeting.calls[static_cast<size_t>(rank)], std::nullopt);
    if (!call) return;  // already told
    Rank& me = ranks_[static_cast<size_t>(rank)];
    const core::Status status = me.error ? core::Status(*me.error) : core::Status();
    bool open = meeting.joined < world_.size() && !ended_;
    for (const std::optional<Call>& other : meeting.calls) open = open || other;
    if (!open) meetings_.erase(found);
    --me.under_way;
    world_.note(rank, status ? "told" : "told of failure", static_cast<uint64_t>(number));
    call->sink->complete(call->token, status, {});
  }

  World& world_;
  std::vector<Rank> ranks_;
  std::map<int64_t, Meeting> meetings_;
  bool ended_ = false;
};

}  // namespace

std::vector<std::unique_ptr<comm::Communicator>> make_group(World& world) {
  return comm::members_of(std::make_shared<Group>(world));
}

}  // namespace gradtune::sim
