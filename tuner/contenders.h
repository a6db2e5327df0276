// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The strategies that the tuner remembers from searches and decisions: the best of each kind of compression, what was
// committed before, and what has its place in the next race. Leaves open when they race.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "policies/policy.h"
#include "tuner/bans.h"

namespace gradtune::tuner {

class Contenders {
 public:
  // A search begins: forgets what the last one measured.
  void start_search() { kinds_.clear(); }

  // The hash of what the policy proposed for a slot. What runs there may have less compression (Bans).
  void proposed(int32_t slot, uint64_t hash) { proposed_[slot] = hash; }
  uint64_t proposed_hash(int32_t slot) const { return proposed_.at(slot); }

  // How fast a strategy ran. The best few of each kind of compression are kept.
  void measured(const policies::Candidate& candidate, double step_ms);
  bool has_measured() const { return !kinds_.empty(); }

  // What was committed until now may be the best again when conditions return.
  void retire(const policies::Candidate& committed);

  // After a ban: takes banned compressors out of what was measured, and drops strategies that are banned as a whole.
  void apply(const Bans& bans);

  // Leaders have their places in the race against what a search finds.
  void add_leader(policies::Candidate candidate) { leaders_.push_back(std::move(candidate)); }
  void add_former_as_leaders(const Bans& bans);
  const std::vector<policies::Candidate>& leaders() const { return leaders_; }
  void clear_leaders() { leaders_.clear(); }

  // What may be the best by now, in the order in which it gets a place in a race: what was committed before, the best
  // of each kind, and the next best of the kind of `committed` (null: nothing is), since the best partition of that
  // kind may be another one by now.
  std::vector<policies::Candidate> known(const core::Strategy* committed, const Bans& bans) const;

 private:
  using Kind = std::set<std::string>;  // the compressors that a strategy uses
  static Kind kind_of(const core::Strategy& strategy);
  struct Measured {
    policies::Candidate candidate;
    double step_ms;
  };

  std::map<Kind, std::vector<Measured>> kinds_;  // of the last search, the fastest first
  std::vector<policies::Candidate> leaders_;
  std::vector<policies::Candidate> former_;  // committed before; the last one first
  std::map<int32_t, uint64_t> proposed_;
};

}  // namespace gradtune::tuner
