// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The strategies that the tuner remembers from searches and decisions: the best of each kind of compression, former
// committed strategies, and those with a place in the next race. It leaves open when they race.
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
  // A search begins: forgets the measurements of the last one.
  void start_search() { kinds_.clear(); }

  // Keeps the hash of the policy's proposal for a slot. The strategy in the slot may have less compression (Bans).
  void proposed(int32_t slot, uint64_t hash) { proposed_[slot] = hash; }
  uint64_t proposed_hash(int32_t slot) const { return proposed_.at(slot); }

  // Keeps a measured step time. The best few of each kind of compression are kept.
  void measured(const policies::Candidate& candidate, double step_ms);
  bool has_measured() const { return !kinds_.empty(); }

  // Keeps the strategy that was committed until now, as it may be the best again when conditions return.
  void retire(const policies::Candidate& committed);

  // After a ban: removes banned compressors from measured strategies, and drops strategies that are banned as a
  // whole.
  void apply(const Bans& bans);

  // Leaders have a place in the race against the results of a search.
  void add_leader(policies::Candidate candidate) { leaders_.push_back(std::move(candidate)); }
  void add_former_as_leaders(const Bans& bans);
  const std::vector<policies::Candidate>& leaders() const { return leaders_; }
  void clear_leaders() { leaders_.clear(); }

  // Strategies that may be the best by now, in the order in which they get places in a race. First come former
  // committed strategies, then the best of each kind, then the next best of the kind of `committed` (null: nothing
  // is committed), since the best partition of that kind may have changed.
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
  std::vector<policies::Candidate> former_;  // former committed strategies, the last one first
  std::map<int32_t, uint64_t> proposed_;
};

}  // namespace gradtune::tuner
