// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/overlap_search.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/core/rng.h"
#include "policies/cost/forward_pass.h"
#include "policies/planner.h"
#include "tests/policies/affine_cost.h"
#include "tests/policies/published_forward.h"

namespace gradtune::policies {
namespace {

// The oracle tries every sequence of messages of neighbouring blocks, each with every option and with both
// deadlines. Blocks are parts of tensors; work is on the link and behind it.
class BruteForce {
 public:
  BruteForce(const CostModel& model, const core::GradientTable& table, int parts)
      : model_(model), ready_us_(ready_times_us(table)), forward_(forward_pass(table)) {
    for (size_t t = 0; t < table.tensors.size(); ++t) {
      for (int part = 0; part < parts; ++part) {
        const int64_t numel = table.tensors[t].numel;
        blocks_.push_back({t, numel * (part + 1) / parts - numel * part / parts});
      }
    }
  }

  double least_us() {
    least_us_ = std::numeric_limits<double>::infinity();
    extend(0, 0, 0, ready_us_.back() + forward_.whole_us);
    return least_us_;
  }

 private:
  struct Block {
    size_t tensor;
    int64_t numel;
  };

  void extend(unsigned sent, double link_us, double unpack_us, double end_us) {
    if (end_us >= least_us_) return;
    if (sent + 1 == 1U << blocks_.size()) {
      least_us_ = end_us;
      return;
    }
    for (size_t first = 0; first < blocks_.size(); ++first) {
      unsigned message = 0;
      int64_t numel = 0;
      double after_us = 0;
      for (size_t last = first; last < blocks_.size() && (sent >> last & 1) == 0; ++last) {
        message |= 1U << last;
        numel += blocks_[last].numel;
        after_us = std::max(after_us, forward_.after_us[blocks_[last].tensor]);
        for (size_t option = 0; option < model_.options().size(); ++option) {
          const Work work = model_.work(option, numel, core::DType::f32);
          const double gone_us = std::max(link_us, ready_us_[blocks_[last].tensor]) + work[kLink];
          const double there_us = work[kUnpack] > 0 ? std::max(unpack_us, gone_us) + work[kUnpack] : gone_us;
          for (const double due_us : {after_us, forward_.whole_us}) {
            extend(sent | message, gone_us, work[kUnpack] > 0 ? there_us : unpack_us,
                   std::max(end_us, there_us + due_us));
          }
        }
      }
    }
  }

  const CostModel& model_;
  const std::vector<double> ready_us_;
  const ForwardPass forward_;
  std::vector<Block> blocks_;
  double least_us_ = 0;
};

double draw(core::Rng& rng, double least, double most) { return least * std::pow(most / least, rng.uniform()); }

// A few tensors; latency, bandwidth or computation may dominate.
core::GradientTable small_table(core::Rng& rng, int tensors) {
  std::vector<core::TensorInfo> all;
  double ready_us = 0;
  for (int t = 0; t < tensors; ++t) {
    all.push_back(testing::tensor(std::to_string(t), static_cast<int64_t>(draw(rng, 10, 1000)), ready_us));
    ready_us += draw(rng, 1, 1000);
  }
  core::GradientTable table = testing::make_table(all);
  assume_forward(table, draw(rng, 0.1, 2));
  table.tensors[0].read_us = table.forward_us * 0.9;  // the first tensor of backward takes time in forward too
  if (rng.below(4) == 0) table.tensors[rng.below(static_cast<uint64_t>(tensors))].read_us = -1;
  if (rng.below(4) == 0) table.update_element_us = draw(rng, 1e-3, 1);
  return table;
}

double searched_us(const CostModel& model, const core::GradientTable& table) {
  const core::Strategy strategy = strategy_in_order(search_overlap(model, table, {}));
  const core::Status status = core::validate(strategy, table);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return forward_end_us(model, table, strategy);
}

TEST(OverlapSearch, IsWithinAPercentOfTheBestOfSmallJobs) {
  core::Rng rng(35);
  double sum = 0, worst = 0;
  constexpr int kJobs = 500;
  for (int job = 0; job < kJobs; ++job) {
    const bool has_options = rng.below(2) == 0;
    const core::GradientTable table = small_table(rng, has_options ? 4 : 3);
    std::vector<testing::AffineCost::Row> rows(has_options ? 2 : 1);
    for (testing::AffineCost::Row& row : rows) {
      row.fixed_us[kLink] = draw(rng, 1, 1000);
      row.us_per_element[kLink] = draw(rng, 0.01, 3);
    }
    if (has_options) {
      rows[1].us_per_element[kLink] *= 0.2;
      rows[1].fixed_us[kUnpack] = draw(rng, 1, 300);
      rows[1].us_per_element[kUnpack] = draw(rng, 0.01, 1);
    }
    testing::AffineCost model(rows);
    if (has_options) model.programs[1] = core::gather_payloads({"topk", 0.01}, core::Place::device);
    const double best_us = BruteForce(model, table, has_options ? 1 : 2).least_us();
    const double ratio = searched_us(model, table) / best_us;
    EXPECT_LE(ratio, 1.01) << "job " << job;
    sum += std::log(ratio);
    worst = std::max(worst, ratio);
  }
  std::printf("of %d jobs: %.4f of brute force's best on average, at most %.4f\n", kJobs, std::exp(sum / kJobs), worst);
}

// Every row is at most 0.5 % above the best of the published schedules. With high latency and little bandwidth, it
// goes at least half of the way from there to the bound that no plan can beat.
TEST(OverlapSearch, BeatsPublishedSchedules) {
  for (const testing::PublishedForward& row : testing::kPublishedForward) {
    SCOPED_TRACE(row.name());
    const auto model = make_linear_cost(row.cost());
    Knowledge knowledge = testing::knowledge_of(row.table(), 2, core::Fidelity::exact);
    knowledge.forward_overlap = true;
    const Planned planned = plan("auto", {*model, knowledge}).value();
    const core::Status status = core::validate(planned.strategy, knowledge.table);
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_DOUBLE_EQ(planned.end_us, forward_end_us(*model, knowledge.table, planned.strategy));
    const double ms = planned.end_us * 1e-3;
    EXPECT_LE(ms, row.best_ms() * 1.005);
    EXPECT_GE(ms, row.least_ms - 0.06);
    if (row.message_us > 1000 && row.factor > 1) {
      EXPECT_LE(ms, (row.best_ms() + row.least_ms) / 2 + 0.1);
    }
  }
}

TEST(OverlapSearch, IsSoundForOddJobs) {
  const auto model = make_linear_cost({100, 1e-3});
  EXPECT_TRUE(search_overlap(*model, {}, {}).empty());
  const std::vector<core::GradientTable> tables = {
      testing::make_table({testing::tensor("one", 1)}), testing::make_table({testing::tensor("none", 0)}),
      testing::make_table({testing::tensor("a", 5, 0), testing::tensor("none", 0, 1), testing::tensor("b", 7, 1)}),
      testing::make_table({testing::tensor("a", 100'000, 0, core::DType::bf16), testing::tensor("b", 100'001, 10),
                           testing::tensor("c", 17, 20, core::DType::f16),
                           testing::tensor("d", 1'000'000, 30, core::DType::bf16), testing::tensor("e", 3, 40)})};
  for (core::GradientTable table : tables) {
    for (const double share : {0.0, 0.5}) {
      assume_forward(table, share);
      const core::Strategy strategy = strategy_in_order(search_overlap(*model, table, {}));
      const core::Status status = core::validate(strategy, table);
      EXPECT_TRUE(status.ok()) << status.error().message;
      EXPECT_EQ(strategy, strategy_in_order(search_overlap(*model, table, {})));
    }
  }
}

TEST(OverlapSearch, WhatNoReaderIsKnownOfIsDueWhenBackwardReturns) {
  core::GradientTable table = testing::make_table(
      {testing::tensor("a", 1'000'000, 0), testing::tensor("b", 1'000'000, 10), testing::tensor("c", 1'000'000, 20)});
  assume_forward(table, 100);
  table.tensors[1].read_us = -1;
  bool has_late = false;
  for (const core::Bucket& bucket : search_overlap(*make_linear_cost({10, 1e-3}), table, {})) {
    has_late = has_late || bucket.due == core::Due::forward;
    for (const core::Slice& slice : bucket.slices) EXPECT_TRUE(slice.tensor != 1 || bucket.due == core::Due::backward);
  }
  EXPECT_TRUE(has_late);
}

// V13: if computation hides all communication there is nothing to gain, and nothing is late.
TEST(OverlapSearch, WhereComputationHidesAllNothingWaits) {
  core::GradientTable table = testing::make_table({testing::tensor("a", 1000, 0), testing::tensor("b", 1000, 100'000)});
  assume_forward(table, 0.5);
  const auto model = make_linear_cost({50, 1e-3});
  const core::Strategy strategy = strategy_in_order(search_overlap(*model, table, {}));
  EXPECT_LE(forward_end_us(*model, table, strategy), 151'100);
}

}  // namespace
}  // namespace gradtune::policies
