// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What follows when a bucket is over its error budget, or its residual runs away against the gradient.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/space/baseline.h"
#include "tuner/tuner_core.h"

namespace gradtune::tuner {
namespace {

std::string describe(const policies::Candidate& candidate, const core::Excess& excess) {
  return fmt::format("{}, bucket {}: {:.3g}, allowed {:.3g}", candidate.label, excess.bucket, excess.value,
                     excess.allowed);
}

// Those of the bucket that lose; none where there is no such bucket.
std::vector<std::string> lossy_codecs(const core::Strategy& strategy, int32_t bucket, core::TraitsTable known) {
  std::vector<std::string> lossy;
  if (bucket < 0 || static_cast<size_t>(bucket) >= strategy.buckets.size()) return lossy;
  for (const core::CompressorSpec& codec : strategy.buckets[static_cast<size_t>(bucket)].option.codecs) {
    const core::CompressorTraits* traits = core::traits_of(codec, known);
    if (traits != nullptr && traits->fidelity == core::Fidelity::lossy) lossy.push_back(core::to_string(codec));
  }
  return lossy;
}

// Names the buckets that were replaced, one after the other, as long as that is for people.
std::string repaired_label(const std::string& label, int32_t bucket) {
  constexpr std::string_view kMark = ", uncompressed: bucket ", kMore = ", ...";
  constexpr size_t kMostBytes = 160;
  if (label.find(kMark) == std::string::npos) return fmt::format("{}{}{}", label, kMark, bucket);
  if (label.size() < kMostBytes) return fmt::format("{}, {}", label, bucket);
  return label.ends_with(kMore) ? label : fmt::format("{}{}", label, kMore);
}

}  // namespace

// Of what is committed the bucket is replaced. Anything else is out of what it runs in, at once.
void Tuner::Core::guard(const core::StepReport& report) {
  const core::Excess& excess = report.excess;
  if (excess.kind == core::Excess::Kind::none || !slots_.contains(report.slot) || is_over(report.slot)) return;
  const std::shared_ptr<const policies::Candidate> candidate = slots_.at(report.slot).candidate;
  const std::vector<std::string> codecs = lossy_codecs(candidate->strategy, excess.bucket, knowledge_.traits);
  if (codecs.empty()) return;  // no rank can mean that
  over_.insert(slots_.at(report.slot).hash);
  // However fast it was: it does not run on, neither to be scored nor where nothing is, and wins no race.
  schedule_.give_up(report.slot);
  slots_.forget_time(report.slot);
  for (Score& score : scores_) {
    if (score.slot == report.slot) score.step_ms.reset();
  }
  const bool is_pinned = options_.budget_steps == 0;
  const bool is_repaired = is_repairing_ && report.slot == winner_;
  if (is_pinned || is_repaired || report.slot == confirmed_) {
    for (const std::string& codec : codecs) {
      for (const core::Slice& slice : candidate->strategy.buckets[static_cast<size_t>(excess.bucket)].slices) {
        banned_[codec].insert(slice.tensor);
      }
    }
    for (auto& [kind, best] : kinds_) {
      for (Best& each : best) each.candidate = without_banned(std::move(each.candidate));
    }
  }
  for (auto& [kind, best] : kinds_) {
    std::erase_if(best, [&](const Best& each) { return over_.contains(core::hash(each.candidate.strategy)); });
  }
  std::erase_if(kinds_, [](const auto& kind) { return kind.second.empty(); });
  const std::string what = describe(*candidate, excess);
  decide(excess.kind == core::Excess::Kind::error ? What::over_error_budget : What::residual_runs_away, what,
         excess.value);

  if (is_pinned) {
    importing_ = false;
    outcome_.label = slots_.at(baseline_).candidate->label;
    at_once_ = {.kind = Command::Kind::commit, .slot = baseline_, .bytes = 0};
  } else if (is_repaired || report.slot == confirmed_) {
    repair(*candidate, excess.bucket, what);
  } else if (stage_ == Stage::confirm && report.slot == winner_) {
    schedule_.stop(baseline_);
    at_once_ = {.kind = Command::Kind::run, .slot = baseline_, .bytes = 0};
    fall_back(what);
  }
}

// The baseline, which every rank has ready, is in force at once, on trial: what other buckets owe stays parked for what
// is prepared meanwhile.
void Tuner::Core::repair(const policies::Candidate& candidate, int32_t bucket, const std::string& why) {
  const policies::Candidate repaired{policies::without_compression(candidate.strategy, bucket),
                                     repaired_label(candidate.label, bucket)};
  if (stage_ == Stage::watch) {
    budget_ = Budget(options_.budget_steps, options_.budget_share);
    budget_.learn_baseline(knowledge_.baseline_ms);
  }
  if (confirmed_) forget_committed();
  scores_.clear();
  race_.reset();
  confirmation_.reset();
  importing_ = is_ranking_ = is_trial_ahead_ = false;
  is_repairing_ = true;
  stage_ = Stage::confirm;
  winner_ = slots_.slot_of(repaired);
  slots_.release_all_but({winner_});
  schedule_.stop(baseline_);
  at_once_ = {.kind = Command::Kind::run, .slot = baseline_, .bytes = 0};
  outcome_.label = slots_.at(baseline_).candidate->label;
  if (winner_ < baselines_ || is_over(winner_)) return settle(why);
  decide(What::repair, repaired.label, bucket);
  slots_.prepare(winner_);
}

void Tuner::Core::confirm_repaired() {
  if (!slots_.contains(winner_)) return fall_back("what was to take its place could not be prepared");
  const double error = allowed_error(confirmations_);
  confirm_winner(most_pairs(error), error);
}

policies::Candidate Tuner::Core::without_banned(policies::Candidate candidate) const {
  const int32_t buckets = banned_.empty() ? 0 : static_cast<int32_t>(candidate.strategy.buckets.size());
  for (int32_t b = 0; b < buckets; ++b) {
    const core::Bucket& bucket = candidate.strategy.buckets[static_cast<size_t>(b)];
    const bool is_banned = std::ranges::any_of(bucket.option.codecs, [&](const core::CompressorSpec& codec) {
      const auto tensors = banned_.find(core::to_string(codec));
      return tensors != banned_.end() && std::ranges::any_of(bucket.slices, [&](const core::Slice& slice) {
               return tensors->second.contains(slice.tensor);
             });
    });
    if (!is_banned) continue;
    candidate = {policies::without_compression(std::move(candidate.strategy), b), repaired_label(candidate.label, b)};
  }
  return candidate;
}

// What may run of what a policy proposes: nothing where that was found over its error budget.
std::optional<policies::Candidate> Tuner::Core::admitted(const policies::Candidate& proposed) const {
  policies::Candidate candidate = without_banned(proposed);
  if (over_.contains(core::hash(candidate.strategy))) return {};
  return candidate;
}

}  // namespace gradtune::tuner
