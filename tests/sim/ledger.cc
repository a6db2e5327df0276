// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/exec/draining.h"
#include "engine/exec/residual_owners.h"

namespace gradtune::sim {
namespace {

using core::DType;

// The rules for an element.
struct Rule {
  DType dtype = DType::f32;
  bool has_feedback = false;
  bool loses = false;  // the compressor's loss is gone: the conformance suite checks its size
  bool mixes = false;  // elements are rounded as combinations of many
  double wire_roundoff = 0;
};

double unit_roundoff(DType dtype) { return dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }

Rule rule_of(const core::Option& option, DType dtype) {
  Rule rule{.dtype = dtype, .wire_roundoff = unit_roundoff(dtype)};
  if (option.codecs.empty()) return rule;
  const std::string& codec = option.codecs[0].name;
  const core::TraitsTable known = compress::known_traits();
  const auto traits = std::find_if(known.begin(), known.end(), [&](const auto& each) { return each.name == codec; });
  rule.has_feedback = traits->error_feedback;
  // Residuals do not contain what momentum keeps.
  rule.loses = traits->fidelity == core::Fidelity::lossy && (!traits->error_feedback || traits->replaces_momentum);
  rule.mixes = traits->rounds > 1;
  const DType wire = codec == "bf16" || codec == "bf16packed" ? DType::bf16 : codec == "fp16" ? DType::f16 : DType::f32;
  rule.wire_roundoff = std::max(unit_roundoff(wire), unit_roundoff(dtype));
  return rule;
}

std::vector<Rule> rules_of(const core::Strategy& strategy, const core::GradientTable& table) {
  std::vector<int64_t> begins;
  int64_t begin = 0;
  for (const core::TensorInfo& tensor : table.tensors) begins.push_back(std::exchange(begin, begin + tensor.numel));
  std::vector<Rule> rules(static_cast<size_t>(begin));
  for (const core::Bucket& bucket : strategy.buckets) {
    for (const core::Slice& slice : bucket.slices) {
      const auto tensor = static_cast<size_t>(slice.tensor);
      const Rule rule = rule_of(bucket.option, table.tensors[tensor].dtype);
      std::fill_n(rules.begin() + begins[tensor] + slice.offset, slice.length, rule);
    }
  }
  return rules;
}

struct Sum {
  double value = 0, magnitude = 0;
  void add(float more) {
    value += static_cast<double>(more);
    magnitude += std::abs(static_cast<double>(more));
  }
};

// Checks an element; the allowed rounding depends on the program. `largest`: largest magnitude of all elements.
bool balances(const Rule& rule, size_t i, const std::vector<StepValues>& ranks, double largest) {
  const auto size = static_cast<double>(ranks.size());
  const auto average = static_cast<double>(ranks[0].average[i]);
  Sum given, before, after;
  for (const StepValues& rank : ranks) {
    given.add(rank.given[i]);
    before.add(rank.before[i]);
    after.add(rank.after[i]);
  }
  constexpr double kSmallest = 0x1p-24;  // of float16
  if (!rule.has_feedback) {
    if (rule.loses) return true;
    for (const StepValues& rank : ranks) {
      given.value += static_cast<double>(rank.before[i]) - static_cast<double>(rank.after[i]);
      given.magnitude += std::abs(static_cast<double>(rank.before[i] - rank.after[i]));  // the drained part
    }
    const double left = 0x1p-24 * (before.magnitude + after.magnitude) / size;  // the rounding of what is left
    const double allowed = (size + 2) * rule.wire_roundoff * given.magnitude / size + left + kSmallest;
    return std::abs(average - given.value / size) <= allowed;
  }
  if (rule.loses) return true;
  const double own = given.magnitude + before.magnitude + after.magnitude + size * std::abs(average);
  const double magnitude = rule.mixes ? own + 4 * size * largest : own;
  const double storing =
      rule.dtype == DType::f32 ? 0 : size * (unit_roundoff(rule.dtype) * std::abs(average) + kSmallest);
  return std::abs(size * average + after.value - given.value - before.value) <= 1e-6 * magnitude + storing;
}

}  // namespace

void Ledger::add(StepValues values) {
  const int64_t step = values.record.step;
  const auto rank = static_cast<size_t>(values.rank);
  if (const auto last = residuals_.find(values.rank); last != residuals_.end()) {
    EXPECT_EQ(values.before, last->second)
        << "residuals of rank " << rank << " changed between steps, before step " << step;
  }
  residuals_[values.rank] = values.after;
  auto& ranks = open_[step];
  ranks.resize(size_);
  ranks[rank] = std::move(values);
  if (!std::all_of(ranks.begin(), ranks.end(), [](const auto& each) { return each.has_value(); })) return;
  std::vector<StepValues> all;
  for (auto& each : ranks) all.push_back(std::move(*each));
  open_.erase(step);
  check(all);
  if (all[0].record.finite) {
    check_drains(all);
    check_parked(all);
  }
  using enum tuner::Command::Kind;
  const tuner::Command::Kind command = all[0].record.command.kind;
  if (command == run || command == commit) is_committed_ = command == commit;
  ++steps_;
}

// The size of a vector's part that is in a bucket.
class BucketNorm {
 public:
  BucketNorm(const core::Bucket& bucket, const core::GradientTable& table) {
    for (const core::Slice& slice : bucket.slices) {
      int64_t begin = slice.offset;
      for (int32_t t = 0; t < slice.tensor; ++t) begin += table.tensors[static_cast<size_t>(t)].numel;
      ranges_.emplace_back(begin, begin + slice.length);
    }
  }
  template <typename Value>
  double operator()(Value value) const {
    double sum = 0;
    for (const auto& [begin, end] : ranges_) {
      for (int64_t i = begin; i < end; ++i) sum += std::pow(static_cast<double>(value(static_cast<size_t>(i))), 2);
    }
    return std::sqrt(sum);
  }
  double operator()(const exec::Values& values) const {
    return (*this)([&](size_t i) { return values[i]; });
  }
  template <typename Visit>
  void each(Visit visit) const {
    for (const auto& [begin, end] : ranges_) {
      for (int64_t i = begin; i < end; ++i) visit(static_cast<size_t>(i));
    }
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;
};

void Ledger::check_drains(const std::vector<StepValues>& ranks) {
  const StepRecord& record = ranks[0].record;
  for (size_t b = 0; b < record.strategy.buckets.size(); ++b) {
    const core::Bucket& bucket = record.strategy.buckets[b];
    const DType dtype = table_.tensors[static_cast<size_t>(bucket.slices.front().tensor)].dtype;
    const Rule rule = rule_of(bucket.option, dtype);
    if (rule.has_feedback) continue;
    const std::string where = "step " + std::to_string(record.step) + ", bucket " + std::to_string(b);
    const BucketNorm norm(bucket, table_);
    const double rounding = 1 + 4 * rule.wire_roundoff;
    double mean = 0;
    for (const StepValues& rank : ranks) {
      const double gradient = norm(rank.given), before = norm(rank.before);
      const double added = norm([&](size_t i) { return rank.before[i] - rank.after[i]; });
      mean += gradient / static_cast<double>(size_);
      if (!is_committed_ || gradient == 0 || before == 0) {
        EXPECT_EQ(added, 0) << where << ", rank " << rank.rank;
        continue;
      }
      EXPECT_LE(added, exec::kDrainShare * gradient * rounding + 0x1p-23 * before) << where;
      EXPECT_GE(added, std::min(before, exec::kDrainShare * gradient) / rounding - 0x1p-23 * before) << where;
      ++drains_;
      if (norm(rank.after) == 0) ++emptied_;
    }
    if (rule.loses) continue;
    EXPECT_LE(norm(ranks[0].average), (1 + exec::kDrainShare) * mean * rounding) << where;
  }
}

// Buckets with error feedback.
void Ledger::check_parked(const std::vector<StepValues>& ranks) {
  const StepRecord& record = ranks[0].record;
  holders_.resize(static_cast<size_t>(table_.numel()));
  for (size_t b = 0; b < record.strategy.buckets.size(); ++b) {
    const core::Bucket& bucket = record.strategy.buckets[b];
    const DType dtype = table_.tensors[static_cast<size_t>(bucket.slices.front().tensor)].dtype;
    if (!rule_of(bucket.option, dtype).has_feedback) continue;
    const std::string where = "step " + std::to_string(record.step) + ", bucket " + std::to_string(b);
    const BucketNorm norm(bucket, table_);
    const std::string codecs = exec::codecs_of(bucket.option);
    bool is_switch = true, owes = false;  // another codec had every element before
    double gradients = 0;
    for (const StepValues& rank : ranks) {
      const double gradient = norm(rank.given), parked = norm(rank.parked_before);
      const double drained = norm([&](size_t i) { return rank.parked_before[i] - rank.parked_after[i]; });
      gradients += gradient;
      owes = owes || parked > 0;
      const double most = is_committed_ ? std::min(parked, exec::kDrainShare * gradient) : 0;
      EXPECT_LE(drained, most * (1 + 1e-5)) << where << ", rank " << rank.rank;
      EXPECT_GE(drained, most * (1 - 1e-5)) << where << ", rank " << rank.rank;
      if (drained > 0) ++parked_drains_;
      int64_t carried = 0;
      norm.each([&](size_t i) {
        const bool is_others = !holders_[i].empty() && holders_[i] != codecs;
        is_switch = is_switch && is_others;
        if (is_others && rank.before[i] != rank.parked_before[i]) ++carried;
      });
      EXPECT_EQ(carried, 0) << "elements whose residual other codecs left, and which is fed back, " << where;
    }
    norm.each([&](size_t i) { holders_[i] = codecs; });
    if (!is_switch || !owes || gradients == 0) continue;
    ++switches_;
    const double applied = static_cast<double>(size_) * norm(ranks[0].average) / gradients;
    EXPECT_LE(applied, kMostApplied) << where << ", " << codecs;
  }
}

void Ledger::check(const std::vector<StepValues>& ranks) const {
  if (ranks[0].record.finite) return check_finite(ranks);
  for (const StepValues& rank : ranks) {
    const std::string where =
        "rank " + std::to_string(rank.rank) + ", step " + std::to_string(rank.record.step) + ", which was not finite";
    EXPECT_EQ(rank.before, rank.after) << where;
    const bool is_same = std::memcmp(rank.average.data(), ranks[0].average.data(), rank.average.size() * 4) == 0;
    EXPECT_TRUE(rank.average.size() == ranks[0].average.size() && is_same) << where;
  }
  check_spread(ranks);
}

// Without error feedback, an element is not finite if some rank's was not; or all elements of the bucket are NaN.
void Ledger::check_spread(const std::vector<StepValues>& ranks) const {
  const std::vector<Rule> rules = rules_of(ranks[0].record.strategy, table_);
  const exec::Values& average = ranks[0].average;
  int64_t nans = 0, wrong = 0;
  for (size_t i = 0; i < average.size(); ++i) {
    nans += std::isnan(average[i]) ? 1 : 0;
    const bool is_given =
        std::all_of(ranks.begin(), ranks.end(), [&](const StepValues& rank) { return std::isfinite(rank.given[i]); });
    wrong += rules[i].has_feedback ? !std::isnan(average[i])
                                   : !std::isnan(average[i]) && std::isfinite(average[i]) != is_given;
  }
  EXPECT_EQ(wrong, 0) << "elements in step " << ranks[0].record.step << ", which was not finite";
  EXPECT_GT(nans, 0) << "in step " << ranks[0].record.step;
}

void Ledger::check_finite(const std::vector<StepValues>& ranks) const {
  const std::vector<Rule> rules = rules_of(ranks[0].record.strategy, table_);
  for (const StepValues& rank : ranks) {
    EXPECT_EQ(rank.average, ranks[0].average) << "ranks 0 and " << rank.rank << ", step " << rank.record.step;
  }
  double largest = 0;
  for (const StepValues& rank : ranks) {
    for (size_t i = 0; i < rules.size(); ++i) {
      largest = std::max(largest,
                         std::abs(static_cast<double>(rank.given[i])) + std::abs(static_cast<double>(rank.before[i])));
    }
  }
  int64_t wrong = 0;
  for (size_t i = 0; i < rules.size(); ++i) wrong += balances(rules[i], i, ranks, largest) ? 0 : 1;
  EXPECT_EQ(wrong, 0) << "elements that do not balance in step " << ranks[0].record.step;
}

}  // namespace gradtune::sim
