// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Simulated jobs whose link changes while they run, for tests of the tuner's work after a decision.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/tuner/simulated_job.h"

namespace gradtune::tuner {

inline constexpr Noise kSmall{.cv = 0.03, .spikes = 0.01, .transient = 1.3};
inline constexpr int64_t kNever = int64_t{1} << 60;

// A change of the link: the time of each strategy per step before and after.
struct Change {
  std::map<std::string, double> before, after;
  int64_t at = kNever, back_at = kNever;

  double factor(int64_t step, const std::string& label) const {
    return step >= at && step < back_at ? after.at(label) / before.at(label) : 1;
  }
};

// fp32 and bf16 are baselines; the searches find a partition of bf16 and a sparse one.
inline const policies::Candidate kFull = candidate("fp32", 0), kHalf = candidate("bf16", 1, "bf16");
inline const policies::Candidate kMerged = candidate("bf16 merged", 2, "bf16", 3),
                                 kSparse = candidate("topk", 3, "topk", 2);

class ChangingJob {
 public:
  explicit ChangingJob(Change change, Noise noise = kSmall, uint64_t seed = 1, const TunerOptions& tuner = {})
      : change_(std::move(change)), job_(options(noise, seed, tuner), change_.before, script(), {kFull, kHalf}) {}

  SimulatedJob& operator*() { return job_; }
  SimulatedJob* operator->() { return &job_; }

  void decide() {
    while (job_.tuner->stage() != Stage::watch) job_.one_step();
  }
  void steps(int64_t n) {
    for (int64_t i = 0; i < n; ++i) job_.one_step();
  }
  void change_now() { change_.at = static_cast<int64_t>(job_.steps.size()); }
  void change_back_now() { change_.back_at = static_cast<int64_t>(job_.steps.size()); }
  // The first step from which on the label is in force to the end.
  int64_t settled(const std::string& label) const {
    const auto other = std::find_if(job_.steps.rbegin(), job_.steps.rend(),
                                    [&](const SimulatedJob::Step& step) { return step.label != label; });
    return job_.steps.rend() - other;
  }

 private:
  JobOptions options(Noise noise, uint64_t seed, const TunerOptions& tuner) {
    JobOptions options;
    options.noise = noise;
    options.seed = seed;
    options.tuner = tuner;
    options.factor = [this](int64_t step, const std::string& label) { return change_.factor(step, label); };
    return options;
  }
  static std::vector<policies::Proposal> script() { return {{{kMerged, kSparse}, false}, {{kMerged, kSparse}, true}}; }

  Change change_;
  SimulatedJob job_;
};

inline const std::map<std::string, double> kFast = {{"fp32", 130}, {"bf16", 110}, {"bf16 merged", 100}, {"topk", 140}};
inline const std::map<std::string, double> kSlow = {{"fp32", 1500}, {"bf16", 800}, {"bf16 merged", 780}, {"topk", 160}};

// It has no noise. Each search finds the given candidates in turn, and the last set from then on.
class JobOfSearches {
 public:
  JobOfSearches(Change change, std::vector<std::vector<policies::Candidate>> found)
      : change_(std::move(change)), found_(std::move(found)), job_(options(), change_.before, {}, {kFull, kHalf}) {
    job_.run(/*more=*/300);
  }
  SimulatedJob* operator->() { return &job_; }
  void change(int64_t Change::*at) {
    change_.*at = static_cast<int64_t>(job_.steps.size());
    for (int i = 0; i < 700; ++i) job_.one_step();
  }
  // The strategies that raced after the decision of this kind, which must be unique.
  std::set<std::string> raced_after(What what) const {
    EXPECT_EQ(job_.decided(what).size(), 1U) << to_string(what);
    const auto decision = std::ranges::find(job_.decisions, what, &Decision::what);
    std::set<std::string> raced;
    for (const SimulatedJob::Step& step : job_.steps) {
      const bool is_after = decision != job_.decisions.end() && step.step > decision->step;
      if (is_after && step.stage == Stage::race) raced.insert(step.label);
    }
    return raced;
  }

 private:
  JobOptions options() {
    JobOptions options;
    options.factor = [this](int64_t step, const std::string& label) { return change_.factor(step, label); };
    options.make_policy = [this] {
      const std::vector<policies::Candidate>& found = found_[std::min(searches_++, found_.size() - 1)];
      return std::make_unique<ScriptedPolicy>(std::vector<policies::Proposal>{{found, false}, {found, true}});
    };
    return options;
  }

  Change change_;
  const std::vector<std::vector<policies::Candidate>> found_;
  size_t searches_ = 0;
  SimulatedJob job_;
};

}  // namespace gradtune::tuner
