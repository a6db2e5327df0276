// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/explanation_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tuner/files/file_io.h"
#include "tuner/report/report.h"

namespace gradtune::tuner {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::vector<std::string> sentences_of(const std::string& name) {
  const std::string text = read_file(GRADTUNE_JOURNALS "/" + name + ".jsonl", 1 << 20).value();
  return sentences(make_report(parse_journal(text).value()).value().explanation.value());
}

Explanation made_up(std::vector<std::vector<double>> others_ms) {
  Explanation explanation{.label = "made up",
                          .ranks = {.size = 2},
                          .expected_ms = 100,
                          .computation_ms = 60,
                          .without = {{Part::bytes, 65}, {Part::messages, 96}, {Part::compressors, 98}},
                          .helped = {{Remedy::twice_the_rate, 80}, {Remedy::lossy, 90, true}},
                          .larger_batch = 0.2,
                          .buckets = {}};
  for (const std::vector<double>& all : others_ms) {
    BucketReason bucket{.bucket = static_cast<int32_t>(explanation.buckets.size()),
                        .first = "9.weight",
                        .last = "9.bias",
                        .bytes = 4096,
                        .option = core::encoded_all_reduce({"bf16"}, core::Place::device),
                        .expected_ms = 5};
    for (const double ms : all) bucket.others.push_back({core::plain_all_reduce(), ms});
    explanation.buckets.push_back(std::move(bucket));
  }
  return explanation;
}

TEST(ExplanationWords, OfARecordedJob) {
  EXPECT_THAT(sentences_of("half_1gbit"),
              ElementsAre("Gradients are sent in 8 groups (buckets); compression saves most for bucket 2, 30.6 "
                          "ms a step; for all 8 the best other way to send it would be as good (within 0.5 % of "
                          "a step).",
                          "A step is expected to take 599.3 ms (596.7 ms were measured), and 531.8 ms without "
                          "any communication; most of the difference is due to the transfer of bytes: if that "
                          "took no time, a step would take 550.4 ms.",
                          "Lossy compression (fidelity \"lossy\"; a guess, because this job never timed it) "
                          "would help most: a step of 542.5 ms (9.5 % less); next is a network with twice the "
                          "rate: a step of 550.6 ms (8.1 % less); twice the batch would take 9.7 % less time for "
                          "each sample."));
  EXPECT_THAT(sentences_of("lossy_200mbit"),
              ElementsAre("Gradients are sent in 3 groups (buckets); compression saves most for bucket 1, 1036.9 "
                          "ms a step; for 2 the best other way to send it would be as good (within 0.5 % of a "
                          "step), and for one it is expected to be faster (bf16, all-gather for bucket 2 would "
                          "save 4.47 ms), which only a measurement can confirm.",
                          "A step is expected to take 343.9 ms (725.3 ms were measured, so take these forecasts "
                          "with caution), and 310.4 ms without any communication; most of the difference is due "
                          "to compressing, scaling and decompressing gradients: if that took no time, a step "
                          "would take 321.7 ms.",
                          "Compression that is twice as fast would help most: a step of 332.8 ms (3.2 % less); "
                          "next is a network with half the delay: a step of 339.5 ms (1.3 % less); twice the "
                          "batch would take 4.9 % less time for each sample."));
  EXPECT_THAT(sentences_of("imported_200mbit"),
              ElementsAre("Gradients are sent in 3 groups (buckets); compression saves most for bucket 1, 1115.7 "
                          "ms a step; for 2 the best other way to send it would be as good (within 0.5 % of a "
                          "step), and for one it is expected to be faster (bf16, all-gather for bucket 2 would "
                          "save 11.0 ms), which only a measurement can confirm.",
                          "A step is expected to take 646.6 ms (312.6 ms were measured, so take these forecasts "
                          "with caution), and 618.9 ms without any communication: computation is the limit.",
                          "A faster network or faster compression would hardly help; twice the batch would take "
                          "2.1 % less time for each sample."));
}

TEST(ExplanationWords, SayWhyABucketIsSentSo) {
  const auto why = [](std::vector<std::vector<double>> others_ms) {
    return sentences(made_up(std::move(others_ms)))[0];
  };
  EXPECT_EQ(why({{130}}),
            "Gradients are sent in one group (bucket); compression saves 30.0 ms a step; "
            "the best other way to send it would make a step 30.0 ms longer.");
  EXPECT_EQ(why({{130}, {140}, {100.4}}),
            "Gradients are sent in 3 groups (buckets); compression saves most for bucket 1, 40.0 "
            "ms a step; for 2 the best other way to send it would make a step 30.0 ms longer or "
            "more, and for one it would be as good (within 0.5 % of a step).");
  EXPECT_EQ(why({{99}, {103}}),
            "Gradients are sent in 2 groups (buckets); compression saves most for bucket 1, 3.00 "
            "ms a step; for one the best other way to send it would make a step 3.00 ms longer, "
            "and for one it is expected to be faster (uncompressed, all-reduce for bucket 0 would "
            "save 1.00 ms), which only a measurement can confirm.");
  EXPECT_EQ(why({{}, {}}),
            "Gradients are sent in 2 groups (buckets); for both the best other way to send it is "
            "not known.");
}

TEST(ExplanationWords, SayWhatLimitsAStep) {
  Explanation explanation = made_up({{130}});
  EXPECT_EQ(sentences(explanation)[1],
            "A step is expected to take 100.0 ms, and 60.0 ms without any communication; most of "
            "the difference is due to the transfer of bytes: if that took no time, a step would "
            "take 65.0 ms.");
  explanation.measured_ms = 104;
  EXPECT_EQ(sentences(explanation)[1],
            "A step is expected to take 100.0 ms (104.0 ms were measured), and 60.0 ms without any "
            "communication; most of the difference is due to the transfer of bytes: if that took "
            "no time, a step would take 65.0 ms.");
  explanation.measured_ms = 50;
  EXPECT_EQ(sentences(explanation)[1],
            "A step is expected to take 100.0 ms (50.0 ms were measured, so take these forecasts "
            "with caution), and 60.0 ms without any communication; most of the difference is due "
            "to the transfer of bytes: if that took no time, a step would take 65.0 ms.");
  explanation.measured_ms = {};
  explanation.is_whole = false;
  explanation.computation_ms = 96;
  EXPECT_EQ(sentences(explanation)[1],
            "From the first gradient on, a step is expected to take 100.0 ms, and 96.0 ms without "
            "any communication: computation is the limit.");
}

TEST(ExplanationWords, SayWhatWouldHelp) {
  Explanation explanation = made_up({{130}});
  EXPECT_EQ(sentences(explanation)[2],
            "A network with twice the rate would help most: a step of 80.0 ms (20.0 % less); next "
            "is lossy compression (fidelity \"lossy\"; a guess, because this job never timed it): "
            "a step of 90.0 ms (10.0 % less); twice the batch would take 20.0 % less time for each "
            "sample.");
  explanation.helped = {{Remedy::half_the_delay, 95}, {Remedy::faster_compressors, 99.5}};
  EXPECT_EQ(sentences(explanation)[2],
            "A network with half the delay would help most: a step of 95.0 ms (5.0 % less); twice "
            "the batch would take 20.0 % less time for each sample.");
  explanation.helped = {{Remedy::twice_the_rate, 99.5}};
  explanation.larger_batch = -0.001;
  EXPECT_EQ(sentences(explanation)[2],
            "A faster network or faster compression would hardly help, and neither would a larger "
            "batch.");
}

TEST(ExplanationWords, NameWaysToSend) {
  EXPECT_EQ(way_of(core::plain_all_reduce()), "uncompressed, all-reduce");
  EXPECT_EQ(way_of(core::encoded_all_reduce({"bf16"}, core::Place::device)), "bf16, all-reduce");
  EXPECT_EQ(way_of(core::gather_payloads({"topk", 0.01}, core::Place::host)), "topk:0.01 on host cores, all-gather");
  EXPECT_EQ(way_of(core::gather_payloads({"none"}, core::Place::device)), "uncompressed, all-gather");
}

TEST(ExplanationWords, HaveATableOfBuckets) {
  Explanation explanation = made_up({{130}, {}});
  explanation.buckets[0].measured_ms = 6.25;
  explanation.ran = {{.candidate = {{}, "made up"}, .steps = 9, .measured_ms = 104, .expected_ms = 100}};
  const std::string text = in_words(explanation);
  EXPECT_THAT(text, StartsWith("made up\nGradients are sent in 2 groups"));
  EXPECT_THAT(text, ContainsRegex("\n +0  9.weight to 9.bias +4.0 KiB  bf16, all-reduce +5.00 +6.25 +.30.0 +.30.0  "
                                  "uncompressed, all-reduce\n"));
  EXPECT_THAT(text, ContainsRegex("\n +1  9.weight to 9.bias +4.0 KiB  bf16, all-reduce +5.00 +- +- +-  -\n"));
  EXPECT_THAT(text, HasSubstr("\n   104.0     100.0  made up\n"));
}

}  // namespace
}  // namespace gradtune::tuner
