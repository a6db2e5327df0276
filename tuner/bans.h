// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What may not run any more after a bucket was over its error budget or its residual ran away (error_budget.h):
// strategies as a whole, and compressors in buckets that hold certain tensors. Bans last for the rest of the job.
// Leaves open what is banned when.
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
  // `baseline`: how a bucket is sent in place of a banned compressor; without one, uncompressed.
  Bans() = default;
  explicit Bans(core::Strategy baseline) : baseline_(std::move(baseline)) {}

  void ban_strategy(uint64_t hash) { strategies_.insert(hash); }
  bool has_strategy(uint64_t hash) const { return strategies_.contains(hash); }

  // These compressors, with their settings, for the tensors of which the bucket holds a part, and for these alone.
  void ban_codecs(const std::vector<std::string>& codecs, const core::Bucket& bucket);

  // The candidate, with each bucket sent as the baseline sends it that uses a banned compressor for one of its tensors.
  policies::Candidate without_banned(policies::Candidate candidate) const;

  // The same; nothing if that is banned as a whole.
  std::optional<policies::Candidate> admitted(const policies::Candidate& proposed) const;

  const core::Strategy& baseline() const { return baseline_; }

 private:
  core::Strategy baseline_;
  std::set<uint64_t> strategies_;
  std::map<std::string, std::set<int32_t>> codecs_;  // with the tensors that they are banned for
};

// The candidate with that bucket sent as the baseline sends it. Its label names the buckets of which that is so.
policies::Candidate sent_as_baseline(policies::Candidate candidate, int32_t bucket, const core::Strategy& baseline);

}  // namespace gradtune::tuner
