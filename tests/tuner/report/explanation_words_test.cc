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
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

Explanation explanation_of(const std::string& name) {
  const std::string text = read_file(GRADTUNE_JOURNALS "/" + name + ".jsonl", 1 << 20).value();
  return make_report(parse_journal(text).value()).value().explanation.value();
}

std::vector<std::string> sentences_of(const std::string& name) { return sentences(explanation_of(name)); }

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
  EXPECT_THAT(
      sentences_of("half_1gbit"),
      ElementsAre(
          "The job's steps took 596.7 ms, and those of the next best of 4 strategies that ran 740.0 ms (bf16 gather, "
          "8 buckets). Gradients are sent in 8 groups (buckets); by the model, bucket 2 gains most: with \"bf16, "
          "all-reduce\" a step is 30.6 ms shorter than with \"uncompressed, all-reduce\"; for all 8 the best other way "
          "would be as good (within 0.5 % of a step).",
          "A step is expected to take 599.3 ms (596.7 ms were measured): 531.8 ms of computation, and 67.6 ms that "
          "communication adds, of which 48.9 ms are the transfer of bytes.",
          "With the same batch, stronger compression (fidelity \"lossy\"; a guess, because this job never timed "
          "it) would help most: a step of 542.5 ms (9.5 % less); next is a network with twice the rate: a step of "
          "550.6 ms (8.1 % less). With twice the batch, each sample would take 9.7 % less time. The model is off by up "
          "to 20.2 % for what ran, more than all these gains, so they are uncertain."));
  EXPECT_THAT(
      sentences_of("lossy_200mbit"),
      ElementsAre(
          "The job's steps took 725.3 ms, and those of the next best of 3 strategies that ran 1042.3 ms (bf16 "
          "all_reduce baseline). Gradients are sent in 3 groups (buckets); by the model, bucket 1 gains most: with "
          "\"topk:0.02, all-gather\" a step is 1036.9 ms shorter than with \"uncompressed, all-reduce\"; for buckets 0 "
          "and 1 the best other way would be as good (within 0.5 % of a step); for bucket 2 \"bf16, all-gather\" would "
          "save 4.47 ms by the model.",
          "A step is expected to take 343.9 ms (725.3 ms were measured): 310.4 ms of computation, and 33.5 ms that "
          "communication adds, of which 22.1 ms are compressing, scaling and decompressing gradients.",
          "With the same batch, compression that is twice as fast would help most: a step of 332.8 ms (3.2 % "
          "less); next is a network with half the delay: a step of 339.5 ms (1.3 % less). With twice the batch, "
          "each sample would take 4.9 % less time. The model is off by up to 52.6 % for what ran, more than all these "
          "gains, so they are uncertain."));
  EXPECT_THAT(
      sentences_of("imported_200mbit"),
      ElementsAre(
          HasSubstr("for bucket 2 \"bf16, all-gather\" would save 11.0 ms by the model."),
          "A step was measured to take 312.6 ms, and the model of this job expects 618.9 ms for its computation "
          "alone, so nothing can be said about what limits a step.",
          "For the same reason there is no advice."));
}

TEST(ExplanationWords, SayWhyABucketIsSentSo) {
  const auto why = [](std::vector<std::vector<double>> others_ms) {
    return sentences(made_up(std::move(others_ms)))[0];
  };
  EXPECT_EQ(why({{130}}),
            "Gradients are sent in one group (bucket); by the model, with \"bf16, all-reduce\" a step is 30.0 ms "
            "shorter than with \"uncompressed, all-reduce\"; the best other way would make a step 30.0 ms longer.");
  EXPECT_EQ(why({{130}, {140}, {100.4}}),
            "Gradients are sent in 3 groups (buckets); by the model, bucket 1 gains most: with \"bf16, "
            "all-reduce\" a step is 40.0 ms shorter than with \"uncompressed, all-reduce\"; for buckets 0 and 1 the "
            "best other way would make a step at least 30.0 ms "
            "longer; for bucket 2 the best other way would be as good (within 0.5 % of a step).");
  EXPECT_EQ(
      why({{99}, {103}}),
      "Gradients are sent in 2 groups (buckets); by the model, bucket 1 gains most: with \"bf16, "
      "all-reduce\" a step is 3.00 ms shorter than with \"uncompressed, all-reduce\"; for bucket 1 the best other way "
      "would make a step 3.00 ms longer; for bucket 0 "
      "\"uncompressed, all-reduce\" would save 1.00 ms by the model.");
  EXPECT_EQ(why({{}, {}}), "Gradients are sent in 2 groups (buckets); for both no other way is known.");
  EXPECT_EQ(
      why({{100}, {100}, {100}, {100}, {100}, {130}}),
      "Gradients are sent in 6 groups (buckets); by the model, bucket 5 gains most: with \"bf16, "
      "all-reduce\" a step is 30.0 ms shorter than with \"uncompressed, all-reduce\"; for bucket 5 the best other way "
      "would make a step 30.0 ms longer; for 5 of them "
      "the best other way would be as good (within 0.5 % of a step).");
}

// Another program can be faster than an uncompressed all-reduce without compression.
TEST(ExplanationWords, CallNothingCompressedThatIsNot) {
  Explanation explanation = made_up({{130}});
  explanation.buckets[0].option = core::gather_payloads({"none"}, core::Place::device);
  EXPECT_THAT(
      sentences(explanation)[0],
      HasSubstr("with \"uncompressed, all-gather\" a step is 30.0 ms shorter than with \"uncompressed, all-reduce\""));
}

TEST(ExplanationWords, CompareTheStrategyWithThoseThatRan) {
  Explanation explanation = made_up({{130}});
  const auto ran = [](std::string label, double measured_ms, double expected_ms) {
    return RanStrategy{
        .candidate = {{}, std::move(label)}, .steps = 9, .measured_ms = measured_ms, .expected_ms = expected_ms};
  };
  explanation.ran = {ran("made up", 104, 100)};
  EXPECT_THAT(sentences(explanation)[0], StartsWith("Gradients are sent"));
  explanation.ran = {ran("slow", 200, 210), ran("made up", 104, 100), ran("near", 110, 121)};
  EXPECT_THAT(
      sentences(explanation)[0],
      StartsWith(
          "The job's steps took 104.0 ms, and those of the next best of 3 strategies that ran 110.0 ms (near). "));
  EXPECT_THAT(sentences(explanation)[2],
              HasSubstr("The model is off by up to 10.0 % for what ran, so smaller gains are uncertain."));
  explanation.ran[2] = ran("as fast", 103, 95);
  EXPECT_THAT(sentences(explanation)[0],
              StartsWith("The job's steps took 104.0 ms, about as long as those of as fast (103.0 ms). "));
  explanation.ran[2] = ran("faster", 90, 95);
  EXPECT_THAT(sentences(explanation)[0],
              StartsWith("The job's steps took 104.0 ms. Of 3 strategies that ran, faster took the least, 90.0 ms. "));
}

TEST(ExplanationWords, SayWhatLimitsAStep) {
  Explanation explanation = made_up({{130}});
  EXPECT_EQ(
      sentences(explanation)[1],
      "A step is expected to take 100.0 ms: 60.0 ms of computation, and 40.0 ms that communication adds, of which 35.0 "
      "ms are the transfer of bytes.");
  explanation.measured_ms = 104;
  EXPECT_EQ(sentences(explanation)[1],
            "A step is expected to take 100.0 ms (104.0 ms were measured): 60.0 ms of computation, and 40.0 ms that "
            "communication adds, of which 35.0 ms are the transfer of bytes.");
  explanation.measured_ms = 80;
  EXPECT_EQ(sentences(explanation)[1],
            "A step is expected to take 100.0 ms (80.0 ms were measured): 60.0 ms of computation, and 40.0 ms that "
            "communication adds, of which 35.0 ms are the transfer of bytes.");
  EXPECT_THAT(
      sentences(explanation)[2],
      HasSubstr("The model is off by up to 25.0 % for what ran, more than all these gains, so they are uncertain."));
  explanation.measured_ms = 59;
  EXPECT_EQ(sentences(explanation)[1],
            "A step was measured to take 59.0 ms, and the model of this job expects 60.0 ms for its computation alone, "
            "so nothing can be said about what limits a step.");
  explanation.measured_ms = {};
  explanation.is_whole = false;
  explanation.computation_ms = 96;
  EXPECT_EQ(sentences(explanation)[1],
            "From the first gradient on, a step is expected to take 100.0 ms: 96.0 ms of computation, and 4.00 ms that "
            "communication adds, so computation is the limit.");
}

TEST(ExplanationWords, SayWhatWouldHelp) {
  Explanation explanation = made_up({{130}});
  EXPECT_EQ(sentences(explanation)[2],
            "With the same batch, a network with twice the rate would help most: a step of 80.0 ms (20.0 % less); next "
            "is stronger compression (fidelity \"lossy\"; a guess, because this job never timed it): a step of 90.0 ms "
            "(10.0 % less). With twice the batch, each sample would take 20.0 % less time.");
  explanation.helped = {{Remedy::half_the_delay, 95}, {Remedy::faster_compressors, 99.5}};
  EXPECT_EQ(sentences(explanation)[2],
            "With the same batch, a network with half the delay would help most: a step of 95.0 ms (5.0 % less). With "
            "twice the batch, each sample would take 20.0 % less time.");
  explanation.helped = {{Remedy::twice_the_rate, 99.5}};
  explanation.larger_batch = -0.001;
  EXPECT_EQ(sentences(explanation)[2],
            "With the same batch, a faster network or faster compression would hardly help. Neither would a larger "
            "batch.");
  explanation.measured_ms = 80;
  EXPECT_THAT(sentences(explanation)[2],
              EndsWith("batch. The model is off by up to 25.0 % for what ran, so this is uncertain."));
  explanation.measured_ms = 50;
  EXPECT_EQ(sentences(explanation)[2], "For the same reason there is no advice.");
}

TEST(ExplanationWords, NameWaysToSend) {
  EXPECT_EQ(way_of(core::plain_all_reduce()), "uncompressed, all-reduce");
  EXPECT_EQ(way_of(core::encoded_all_reduce({"bf16"}, core::Place::device)), "bf16, all-reduce");
  EXPECT_EQ(way_of(core::gather_payloads({"topk", 0.01}, core::Place::host)), "topk:0.01 on host cores, all-gather");
  EXPECT_EQ(way_of(core::gather_payloads({"none"}, core::Place::device)), "uncompressed, all-gather");
}

TEST(ExplanationWords, SayOnWhichRanksAndLinks) {
  const auto second_line = [](const std::string& text) { return text.substr(0, text.find('\n', text.find('\n') + 1)); };
  EXPECT_EQ(second_line(in_words(explanation_of("half_1gbit"), "the headline")),
            "the headline\nOn 2 ranks; the link between ranks carries 857.1 Mbit/s (all-reduce), and each message "
            "takes 1.15 ms more.");
  Explanation explanation = made_up({{130}});
  explanation.ranks = {.size = 4, .local_size = 2};
  explanation.links = {{.level = core::Level::inter, .mbit_per_s = 200, .message_ms = 1.5},
                       {.level = core::dimension(1), .mbit_per_s = 0, .message_ms = 2}};
  EXPECT_EQ(second_line(in_words(explanation, "made up")),
            "made up\nOn 4 ranks, 2 in a node; the link between nodes carries 200.0 Mbit/s (all-reduce), and each "
            "message takes 1.50 ms more.");
  explanation.buckets[0].option = core::recursive_doubling({"rows"}, core::Place::device, 4);
  EXPECT_THAT(
      in_words(explanation, "made up"),
      HasSubstr("; the link in round 2 of recursive doubling takes no time for bytes that could be measured, and "
                "each message takes 2.00 ms more."));
}

TEST(ExplanationWords, SayWhichCompressorsAreUsed) {
  EXPECT_THAT(
      in_words(explanation_of("lossy_200mbit"), ""),
      HasSubstr("\nnone, uncompressed: gradients as they are\ntopk:0.02: the largest elements, this share of "
                "all; density 0.02; fidelity \"lossy\"\nbf16: rounded to bfloat16, 8 bits of precision; fidelity "
                "\"half\"\n"));
}

TEST(ExplanationWords, HaveATableOfBuckets) {
  Explanation explanation = made_up({{130}, {}});
  explanation.buckets[0].measured_ms = 6.25;
  explanation.ran = {{.candidate = {{}, "made up"}, .steps = 9, .measured_ms = 104, .expected_ms = 100}};
  const std::string text = in_words(explanation, "made up");
  EXPECT_THAT(text, StartsWith("made up\nOn 2 ranks.\nGradients are sent in 2 groups"));
  EXPECT_THAT(text, ContainsRegex("\n +0  9.weight to 9.bias +4.0 KiB  bf16, all-reduce +5.00 +6.25 +.30.0 +.30.0  "
                                  "uncompressed, all-reduce\n"));
  EXPECT_THAT(text, ContainsRegex("\n +1  9.weight to 9.bias +4.0 KiB  bf16, all-reduce +5.00 +- +- +-  -\n"));
  EXPECT_THAT(text, HasSubstr("\n   104.0     100.0     -4 %  made up\n"));
}

}  // namespace
}  // namespace gradtune::tuner
