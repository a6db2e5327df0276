// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Policy `exhaustive`: measures every admitted option on every partition, for small spaces and as a check of the
// other policies. Partitions are all groupings of neighbouring tensors if these are few, and equal slices otherwise.
// If there are more than kMostCandidates it measures an evenly spaced selection, and the labels say so.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "policies/policy.h"
#include "policies/space/partition.h"
#include "policies/space/schemes.h"

namespace gradtune::policies {
namespace {

constexpr size_t kMostCandidates = 64;
constexpr size_t kFewTensors = 6;  // 2^5 groupings
constexpr int kMostSlices = 8;

// Cuts the table after every tensor whose bit is set; a group with several dtypes gives one bucket for each.
Partition grouped(const core::GradientTable& table, const std::vector<int32_t>& tensors, unsigned cuts) {
  Partition partition;
  std::map<core::DType, std::vector<core::Slice>> open;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const core::TensorInfo& tensor = table.tensors[static_cast<size_t>(tensors[i])];
    open[tensor.dtype].push_back({tensors[i], 0, tensor.numel});
    if ((cuts >> i & 1) == 0 && i + 1 < tensors.size()) continue;
    for (auto& [dtype, slices] : open) partition.push_back(std::move(slices));
    open.clear();
  }
  return partition;
}

std::vector<Partition> all_partitions(const core::GradientTable& table) {
  std::vector<int32_t> tensors;
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    if (table.tensors[t].numel > 0) tensors.push_back(static_cast<int32_t>(t));
  }
  std::vector<Partition> partitions;
  if (tensors.empty()) return partitions;
  if (tensors.size() <= kFewTensors) {
    for (unsigned cuts = 0; cuts < 1u << (tensors.size() - 1); ++cuts)
      partitions.push_back(grouped(table, tensors, cuts));
  } else {
    for (int slices = 1; slices <= kMostSlices; ++slices) {
      const int64_t bytes = (table.bytes() + slices - 1) / slices;
      partitions.push_back(core::cut(table, bytes, bytes, /*split=*/true));
    }
  }
  return partitions;
}

class Exhaustive final : public Policy {
 public:
  explicit Exhaustive(const PolicyOptions& options) : most_finalists_(std::max(options.most_finalists, 0)) {}

  std::string_view name() const override { return "exhaustive"; }

  Proposal propose(const Knowledge& knowledge) override {
    if (!asked_) {
      asked_ = true;
      candidates_ = choose(all_candidates(knowledge));
      step_ms_.assign(candidates_.size(), std::numeric_limits<double>::infinity());
      if (!candidates_.empty()) return {candidates_, false};
    }
    return {best(), true};
  }

  void learn(const core::Measurement& measurement) override {
    for (size_t c = 0; c < candidates_.size(); ++c) {
      if (core::hash(candidates_[c].strategy) == measurement.strategy_hash) step_ms_[c] = measurement.step_ms;
    }
  }

 private:
  static std::vector<Candidate> all_candidates(const Knowledge& knowledge) {
    std::vector<Candidate> candidates;
    if (knowledge.ranks.size < 2) return candidates;  // nothing to communicate
    const std::vector<Partition> partitions = all_partitions(knowledge.table);
    std::set<uint64_t> seen;
    for (const Scheme& form : admitted_schemes(knowledge)) {
      for (const Partition& partition : partitions) {
        Candidate candidate = apply(form, partition, knowledge);
        if (seen.insert(core::hash(candidate.strategy)).second) candidates.push_back(std::move(candidate));
      }
    }
    return candidates;
  }

  static std::vector<Candidate> choose(std::vector<Candidate> all) {
    if (all.size() <= kMostCandidates) return all;
    std::vector<Candidate> chosen;
    for (size_t i = 0; i < kMostCandidates; ++i) {
      chosen.push_back(std::move(all[i * all.size() / kMostCandidates]));
      chosen.back().label += fmt::format(" ({} of {} measured)", kMostCandidates, all.size());
    }
    return chosen;
  }

  std::vector<Candidate> best() const {
    std::vector<size_t> ranked;
    for (size_t c = 0; c < candidates_.size(); ++c) {
      if (std::isfinite(step_ms_[c])) ranked.push_back(c);
    }
    std::stable_sort(ranked.begin(), ranked.end(), [&](size_t a, size_t b) { return step_ms_[a] < step_ms_[b]; });
    ranked.resize(std::min(ranked.size(), most_finalists_));
    std::vector<Candidate> finalists;
    for (size_t c : ranked) finalists.push_back(candidates_[c]);
    return finalists;
  }

  const size_t most_finalists_;
  bool asked_ = false;
  std::vector<Candidate> candidates_;
  std::vector<double> step_ms_;  // of the candidates; infinity if one could not run
};

}  // namespace

std::unique_ptr<Policy> make_exhaustive(const PolicyOptions& options) { return std::make_unique<Exhaustive>(options); }

}  // namespace gradtune::policies
