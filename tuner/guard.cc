// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What follows when a bucket is over its error budget, or its residual runs away against the gradient.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tuner/tuner_core.h"

namespace gradtune::tuner {
namespace {

std::string describe(const policies::Candidate& candidate, const core::Excess& excess) {
  return fmt::format("{}, bucket {}: {:.3g}, allowed {:.3g}", candidate.label, excess.bucket, excess.value,
                     excess.allowed);
}

// Those of the bucket that lose; none where there is no such bucket.
std::vector<std::string> lossy_codecs(const core::Strategy& strategy, int32_t bucket,
                                      const std::vector<core::CompressorTraits>& known) {
  std::vector<std::string> lossy;
  if (bucket < 0 || static_cast<size_t>(bucket) >= strategy.buckets.size()) return lossy;
  for (const core::CompressorSpec& codec : strategy.buckets[static_cast<size_t>(bucket)].option.codecs) {
    const core::CompressorTraits* traits = core::traits_of(codec, known);
    if (traits != nullptr && traits->fidelity == core::Fidelity::lossy) lossy.push_back(core::to_string(codec));
  }
  return lossy;
}

}  // namespace

// What is committed gives way to the baseline, which every rank has ready: a strategy that does without compression in
// this bucket alone would have to be confirmed first. Anything else is out of what it runs in, with its blocks.
void Tuner::Core::guard(const core::StepReport& report) {
  const core::Excess& excess = report.excess;
  if (excess.kind == core::Excess::Kind::none || !roster_.contains(report.slot) || is_over(report.slot)) return;
  const std::shared_ptr<const policies::Candidate> candidate = roster_.at(report.slot).candidate;
  const std::vector<std::string> codecs = lossy_codecs(candidate->strategy, excess.bucket, knowledge_.traits);
  if (codecs.empty()) return;  // no rank can mean that
  over_.insert(roster_.at(report.slot).hash);
  const bool is_pinned = options_.budget_steps == 0;
  if (is_pinned || report.slot == confirmed_) banned_.insert(codecs.begin(), codecs.end());
  std::erase_if(kinds_, [&](const auto& kind) { return is_banned(kind.second.candidate); });
  const std::string what = describe(*candidate, excess);
  decide(excess.kind == core::Excess::Kind::error ? "over error budget" : "residual runs away", what, excess.value);

  if (is_pinned) {
    importing_ = false;
    outcome_.label = roster_.at(baseline_).candidate->label;
    commit_ = baseline_;
  } else if (report.slot == confirmed_) {
    if (stage_ == Stage::watch) budget_ = Budget(options_.budget_steps, options_.budget_share);
    stage_ = Stage::audit;  // which found against it
    forget_committed();
    settle(what);
  } else if (stage_ == Stage::confirm && report.slot == winner_ && !importing_) {
    settle(what);
  }
}

bool Tuner::Core::is_banned(const policies::Candidate& candidate) const {
  if (over_.contains(core::hash(candidate.strategy))) return true;
  return std::ranges::any_of(candidate.strategy.buckets, [&](const core::Bucket& bucket) {
    return std::ranges::any_of(bucket.option.codecs,
                               [&](const auto& codec) { return banned_.contains(core::to_string(codec)); });
  });
}

}  // namespace gradtune::tuner
