// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Keeps what may not run any more after a bucket exceeded its error budget or its residual ran away
// (error_budget.h). Bans apply to whole strategies, and to compressors in buckets that hold certain tensors. They
// last for the rest of the job. It leaves open what is banned when.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "policies/policy.h"

namespace gradtune::tuner {

class Bans {
 public:
  // `baseline` gives the programs that replace a banned compressor in a bucket; without one, buckets are sent
  // uncompressed.
  Bans() = default;
  explicit Bans(core::Strategy baseline) : baseline_(std::move(baseline)) {}

  void ban_strategy(uint64_t hash) { strategies_.insert(hash); }
  bool has_strategy(uint64_t hash) const { return strategies_.contains(hash); }

  // Bans these compressors, with their settings, for the tensors that have a part in the bucket, and for no others.
  void ban_codecs(const std::vector<std::string>& codecs, const core::Bucket& bucket);

  // The candidate, with the baseline's program in each bucket that uses a banned compressor for one of its tensors.
  policies::Candidate without_banned(policies::Candidate candidate) const;

  // The same; nothing if the whole strategy is banned.
  std::optional<policies::Candidate> admitted(const policies::Candidate& proposed) const;

  const core::Strategy& baseline() const { return baseline_; }

 private:
  core::Strategy baseline_;
  std::set<uint64_t> strategies_;
  std::map<std::string, std::set<int32_t>> codecs_;  // with the tensors that each is banned for
};

// The candidate with that bucket sent as the baseline sends it. Its label names all such buckets.
policies::Candidate sent_as_baseline(policies::Candidate candidate, int32_t bucket, const core::Strategy& baseline);

}  // namespace gradtune::tuner
