// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/schemes.h"

#include <gmock/gmock.h>

#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using core::DType;
using core::Fidelity;
using ::testing::ElementsAre;

Knowledge knowledge(int world_size, Fidelity fidelity, core::GradientTable table = testing::reference_table()) {
  return testing::knowledge_of(std::move(table), world_size, fidelity);
}

std::vector<std::string> labels(const std::vector<Scheme>& forms) {
  std::vector<std::string> all;
  for (const Scheme& form : forms) all.push_back(form.label);
  return all;
}

TEST(Forms, AreEveryProgramOfEveryAdmittedCompressor) {
  EXPECT_THAT(labels(admitted_schemes(knowledge(2, Fidelity::exact))),
              ElementsAre("all_reduce", "none gather", "none two_step"));
  EXPECT_THAT(labels(admitted_schemes(knowledge(2, Fidelity::lossy))),
              ElementsAre("all_reduce", "none gather", "none two_step",       //
                          "bf16 gather", "bf16 two_step", "bf16 all_reduce",  //
                          "topk:0.01 gather", "topk:0.01 two_step"));
}

TEST(Forms, AreOnTheHostOnlyWhereItHasThreads) {
  Knowledge with_host = knowledge(2, Fidelity::exact);
  with_host.host_threads = 1;
  EXPECT_THAT(labels(admitted_schemes(with_host)),
              ElementsAre("all_reduce", "none gather", "none two_step", "none gather host", "none two_step host"));
}

TEST(Forms, SayWhatARankSends) {
  const int64_t n = testing::reference_table().numel();
  for (int ranks : {2, 3, 16}) {
    for (const Scheme& form : admitted_schemes(knowledge(ranks, Fidelity::lossy))) {
      const double payload = form.codec == 0 ? 1 : form.codec == 1 ? 0.5 : (16 + 8 * std::ceil(0.01 * n)) / (4.0 * n);
      const bool gathers = form.label.find("gather") != std::string::npos;
      EXPECT_DOUBLE_EQ(form.sent, payload * (gathers ? ranks - 1 : 2.0 * (ranks - 1) / ranks)) << form.label;
    }
  }
}

// Knows a compressor that sends matrices as a hundredth, in two rounds, and all else unchanged.
Knowledge with_matrices(core::GradientTable table) {
  Knowledge job = knowledge(2, Fidelity::lossy, std::move(table));
  const auto payload_bytes = [](const core::CompressorSpec&, const core::Extent& extent, int round) {
    int64_t numbers = extent.numel;
    for (const core::Matrix& matrix : extent.matrices) numbers -= matrix.rows * matrix.columns;
    return round == 0 ? 4 * (extent.numel - numbers) / 100 : 4 * numbers;
  };
  static const auto known = [=] {
    std::vector<core::CompressorTraits> all(testing::known_traits().begin(), testing::known_traits().end());
    all.push_back({.name = "narrow",
                   .summary = "",
                   .fidelity = Fidelity::lossy,
                   .listed = core::Listed::never,
                   .summable = true,
                   .error_feedback = true,
                   .parameter_name = "",
                   .rounds = 2,
                   .needs_matrices = true,
                   .payload_bytes = payload_bytes});
    return all;
  }();
  job.traits = known;
  job.codecs = {{"none"}, {"narrow"}};
  return job;
}

TEST(Forms, OfSeveralRoundsAreSummed) {
  core::GradientTable table = testing::make_table({testing::tensor("a", 8000, 0), testing::tensor("b", 2000, 1)});
  table.tensors[0].shape = {100, 80};
  table.tensors[1].shape = {2000};
  const Knowledge job = with_matrices(table);
  const std::vector<Scheme> forms = admitted_schemes(job);
  EXPECT_THAT(labels(forms), ElementsAre("all_reduce", "none gather", "none two_step", "narrow all_reduce"));
  EXPECT_EQ(forms.back().option, core::encoded_all_reduce({"narrow"}, core::Place::device, 2));
  EXPECT_DOUBLE_EQ(forms.back().sent, (80.0 + 2000) / 10000);
  // A bucket without a matrix is sent unchanged.
  const Candidate candidate = apply(forms.back(), {{{0, 0, 8000}}, {{1, 0, 2000}}}, job);
  EXPECT_EQ(candidate.strategy.buckets[0].option, forms.back().option);
  EXPECT_EQ(candidate.strategy.buckets[1].option, core::plain_all_reduce());
}

TEST(Forms, CarryTheFidelityThatAdmitsThem) {
  for (const Scheme& form : admitted_schemes(knowledge(2, Fidelity::lossy))) {
    EXPECT_EQ(form.fidelity, std::vector({Fidelity::exact, Fidelity::half, Fidelity::lossy})[form.codec]) << form.label;
  }
}

TEST(Apply, GivesAValidStrategyWithTwoBucketsInFlight) {
  const Knowledge job = knowledge(2, Fidelity::half);
  for (const Scheme& form : admitted_schemes(job)) {
    const Candidate candidate = apply(form, nested_partitions(job.table, 3).back(), job);
    EXPECT_TRUE(core::validate(candidate.strategy, job.table).ok()) << form.label;
    EXPECT_EQ(candidate.label, form.label + ", 3 buckets");
    EXPECT_EQ(candidate.strategy.in_flight, form.label.find("two_step") == std::string::npos ? 2 : 4);
  }
}

TEST(Apply, DoesNotCompress16BitGradientsTo16Bits) {
  const auto table = testing::make_table({testing::tensor("a", 4096, 0, DType::bf16), testing::tensor("b", 4096, 1),
                                          testing::tensor("c", 4096, 2, DType::f16)});
  const Knowledge job = knowledge(2, Fidelity::lossy, table);
  for (const Scheme& form : admitted_schemes(job)) {
    for (const core::Bucket& bucket : apply(form, nested_partitions(table, 3)[0], job).strategy.buckets) {
      const bool is_fp32 = bucket.slices[0].tensor == 1;
      const bool is_topk = form.codec == 2;
      EXPECT_EQ(bucket.option, is_fp32 || is_topk ? form.option : core::plain_all_reduce()) << form.label;
    }
  }
}

TEST(Apply, SendsSmallTensorsWithoutLossWhereverThePartitionHasThem) {
  const auto table = testing::make_table({testing::tensor("a", 1 << 20), testing::tensor("b", 100, 1),
                                          testing::tensor("c", 50, 2, DType::bf16), testing::tensor("d", 0, 3),
                                          testing::tensor("e", 200, 4)});
  for (const Fidelity fidelity : {Fidelity::exact, Fidelity::lossy}) {
    const Knowledge job = knowledge(2, fidelity, table);
    for (const Scheme& form : admitted_schemes(job)) {
      core::GradientTable part = table;
      part.tensors.resize(form.end);
      const Candidate candidate = apply(form, nested_partitions(part, 2).back(), job);
      EXPECT_TRUE(core::validate(candidate.strategy, table).ok()) << form.label;
      const auto& buckets = candidate.strategy.buckets;
      if (form.fidelity != Fidelity::lossy) {
        EXPECT_EQ(part, table) << form.label;
        continue;
      }
      EXPECT_EQ(part.tensors.size(), 1u);
      const Partition mixed = {{{0, 0, 1 << 19}}, {{0, 1 << 19, 1 << 19}, {1, 0, 100}, {4, 0, 200}}, {{2, 0, 50}}};
      EXPECT_EQ(apply(form, mixed, job).strategy, candidate.strategy) << form.label;
      EXPECT_EQ(candidate.label, form.label + ", 2 buckets + small");
      ASSERT_EQ(buckets.size(), 4u) << form.label;
      EXPECT_EQ(buckets[0].option, form.option);
      EXPECT_EQ(buckets[1].option, form.option);
      EXPECT_EQ(buckets[2].slices, (std::vector<core::Slice>{{1, 0, 100}, {4, 0, 200}}));
      EXPECT_EQ(core::to_string(buckets[2].option), "bf16: encode@device all_reduce decode@device");
      EXPECT_EQ(buckets[3].slices, (std::vector<core::Slice>{{2, 0, 50}}));
      EXPECT_EQ(buckets[3].option, core::plain_all_reduce());
    }
  }
}

TEST(Admitted, NeedsAFitAndAdmittedCompressors) {
  const Knowledge half = knowledge(2, Fidelity::half), lossy = knowledge(2, Fidelity::lossy);
  Candidate topk = apply(admitted_schemes(lossy).back(), nested_partitions(lossy.table, 2)[1], lossy);
  EXPECT_TRUE(admitted(topk.strategy, lossy));
  EXPECT_FALSE(admitted(topk.strategy, half));
  for (core::Bucket& bucket : topk.strategy.buckets) bucket.option.codecs[0].parameter = 0.02;
  EXPECT_FALSE(admitted(topk.strategy, lossy)) << "the allow-list names topk:0.01";
  EXPECT_FALSE(admitted(core::Strategy{}, lossy));
}

}  // namespace
}  // namespace gradtune::policies
