// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A link changes from 1000 to 100 Mbit/s and back while a job trains. The real tuner runs on a simulated job, with
// step times that were recorded on real ranks at both rates (record_steps.py). Steps are drawn from these in runs,
// so that consecutive steps stay together. Each change must be noticed within 50 steps, and the final strategy must
// be within 3 % of the best one for that rate. A new search waits until not searching has cost as much as a search
// would, so less gain means a longer wait.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/median.h"
#include "tests/tuner/simulated_job.h"
#include "tuner/files/file_io.h"

namespace gradtune::tuner {
namespace {

using policies::Candidate;

constexpr int kRuns = 20, kGoodRuns = 18;
constexpr int64_t kQuietSteps = 130;  // after a decision, before the link changes: the detector learns its level in 50
constexpr int64_t kEnd = 1'500;       // steps after a change
constexpr int64_t kMostSteps = 6'000, kDelay = 50;
constexpr double kNearBest = 1.03;
constexpr uint64_t kRunLength = 8;  // consecutive steps in one draw

struct StepMs {
  double step, compute_max, compute_min, comm;
};
using Recorded = std::map<std::string, std::vector<StepMs>>;  // by label

Recorded read(const std::string& rate) {
  const auto json = nlohmann::json::parse(read_file(GRADTUNE_STEPS, 1 << 20).value());
  Recorded recorded;
  for (const auto& [label, steps] : json["ms"][rate].items()) {
    for (const auto& step : steps) recorded[label].push_back({step[0], step[1], step[2], step[3]});
  }
  return recorded;
}

double median_ms(const std::vector<StepMs>& steps) {
  std::vector<double> ms;
  for (const StepMs& step : steps) ms.push_back(step.step);
  return core::median(std::move(ms));
}

// The steps of one strategy at one rate, without end.
class Resampled {
 public:
  Resampled(const std::vector<StepMs>& steps, core::Rng rng) : steps_(&steps), rng_(rng) {}
  const StepMs& next() {
    if (left_-- == 0) {
      at_ = rng_.below(steps_->size());
      left_ = kRunLength - 1;
    }
    return (*steps_)[at_++ % steps_->size()];
  }

 private:
  const std::vector<StepMs>* steps_;
  core::Rng rng_;
  size_t at_ = 0;
  uint64_t left_ = 0;
};

// A job over a link with the present rate `rate`.
class DriftingJob {
 public:
  explicit DriftingJob(uint64_t seed) {
    for (size_t r = 0; r < recorded_.size(); ++r) {
      for (const auto& [label, steps] : recorded_[r]) {
        resampled_[r].emplace(label, Resampled(steps, core::Rng(seed).fork(label).fork(std::to_string(r))));
      }
    }
    std::vector<Candidate> baselines, arms;
    std::map<std::string, double> any_ms;
    for (const auto& [label, steps] : recorded_[0]) {
      const std::string codec = label.substr(0, label.find_first_of(" :"));
      const bool is_baseline = label.ends_with(" baseline");
      std::vector<Candidate>& to = is_baseline ? baselines : arms;
      to.push_back(candidate(label, static_cast<int>(any_ms.size()), codec == "all_reduce" ? "" : codec));
      any_ms[label] = 1;
    }
    core::Rng(seed).fork("arms").shuffle(arms);
    JobOptions options;
    options.seed = seed;
    options.step = [this](int64_t, const std::string& label) {
      const StepMs& ms = resampled_[rate_].at(label).next();
      return SimulatedStep{
          .step_ms = ms.step, .compute_ms_max = ms.compute_max, .compute_ms_min = ms.compute_min, .comm_ms = ms.comm};
    };
    const std::vector<policies::Proposal> script = {{arms, false}, {arms, true}};
    job_.emplace(options, any_ms, script, baselines);
  }

  void settle() {
    while (!is_settled() && steps() < kMostSteps) job_->one_step();
  }

  void change(size_t rate) {
    rate_ = rate;
    const int64_t changed = steps();
    while (steps() < changed + kEnd) job_->one_step();
    const int64_t alarm = alarm_since(changed);
    is_noticed = alarm >= 0 && alarm - changed <= kDelay;
    double best_ms = 1e9;
    for (const auto& [label, recorded] : recorded_[rate]) best_ms = std::min(best_ms, median_ms(recorded));
    is_near_best = median_ms(recorded_[rate].at(job_->tuner->chosen().label)) <= kNearBest * best_ms;
  }

  bool is_noticed = false, is_near_best = false;  // for the last change

 private:
  int64_t steps() const { return static_cast<int64_t>(job_->steps.size()); }
  int64_t alarm_since(int64_t step) const {
    for (const Decision& decision : job_->decisions) {
      if (decision.step >= step && (decision.what == Decision::What::drift || decision.what == Decision::What::link))
        return decision.step;
    }
    return -1;
  }
  bool is_settled() const {
    int64_t last = -1;
    for (const Decision& decision : job_->decisions) last = decision.step;
    return job_->tuner->stage() == Stage::watch && steps() > last + kQuietSteps;
  }

  const std::vector<Recorded> recorded_ = {read("1gbit"), read("100mbit")};
  std::map<size_t, std::map<std::string, Resampled>> resampled_;
  size_t rate_ = 0;
  std::optional<SimulatedJob> job_;
};

TEST(DriftGolden, FromRecordedStepsEachChangeIsNoticedAndEndsNearTheBest) {
  int good = 0;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    DriftingJob job(seed);
    job.settle();
    job.change(1);
    const bool is_slow_good = job.is_noticed && job.is_near_best;
    job.change(0);
    good += is_slow_good && job.is_noticed && job.is_near_best ? 1 : 0;
  }
  EXPECT_GE(good, kGoodRuns) << "of " << kRuns;
}

// Shows that the recording can tell: the rates are far apart, and the best strategy of one is not good enough at the
// other.
TEST(DriftGolden, TheRatesDiffer) {
  const Recorded fast = read("1gbit"), slow = read("100mbit");
  for (const auto& [label, steps] : fast) {
    ASSERT_TRUE(slow.contains(label)) << label;
    EXPECT_GE(std::min(steps.size(), slow.at(label).size()), 8U) << label;
  }
  const std::string baseline = "bf16 all_reduce baseline";
  EXPECT_GT(median_ms(slow.at(baseline)), 2 * median_ms(fast.at(baseline)));
  const auto faster = [](const auto& a, const auto& b) { return median_ms(a.second) < median_ms(b.second); };
  const std::string best_fast = std::ranges::min_element(fast, faster)->first;
  const auto best_slow = std::ranges::min_element(slow, faster);
  EXPECT_GT(median_ms(slow.at(best_fast)), kNearBest * median_ms(best_slow->second));
}

}  // namespace
}  // namespace gradtune::tuner
