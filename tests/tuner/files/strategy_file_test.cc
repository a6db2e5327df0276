// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/strategy_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/compress/compressor.h"
#include "engine/core/rng.h"
#include "tests/temp_folder.h"

namespace gradtune::tuner {
namespace {

using core::DType;
using core::Fidelity;
using ::testing::HasSubstr;

core::TraitsTable known() {
  static const auto traits = compress::known_traits();
  return traits;
}

core::GradientTable small_table() {
  return {{{.name = "fc.bias", .shape = {10}, .numel = 10, .dtype = DType::f32, .ready_us = 1},
           {.name = "fc.weight", .shape = {10, 300}, .numel = 3000, .dtype = DType::f32, .ready_us = 2},
           {.name = "embed", .shape = {0}, .numel = 0, .dtype = DType::f32, .ready_us = 3},
           {.name = "conv \"1\"", .shape = {7}, .numel = 7, .dtype = DType::bf16, .ready_us = 4}}};
}

StrategyFile file_of(const core::GradientTable& table, core::Strategy strategy) {
  StrategyFile file{.model = table.fingerprint(),
                    .world_size = 2,
                    .fidelity = Fidelity::half,
                    .label = "bf16 gather, 2 buckets",
                    .strategy = std::move(strategy)};
  for (const core::TensorInfo& tensor : table.tensors) file.tensors.push_back(tensor.name);
  return file;
}

StrategyFile small_file() {
  StrategyFile file = file_of(small_table(), core::uniform(core::cut(small_table(), 8000, 8000, true),
                                                           core::gather_payloads({"bf16"}, core::Place::device), 2));
  file.evidence =
      Evidence{{.baseline_ms = 228.1, .committed_ms = 104.3, .gain = 0.5427, .gain_low = 0.531, .gain_high = 0.554},
               212,
               "2025-01-31T12:00:00Z"};
  return file;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return text.replace(at, what.size(), by);
}

// The error from reading the text.
std::string error_of(const std::string& text) {
  const auto file = parse_strategy(text, known());
  return file.ok() ? "no error" : file.error().message;
}

TEST(StrategyFile, ReadsWhatItWrites) {
  const StrategyFile file = small_file();
  const auto read = parse_strategy(to_json(file), known());
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value(), file);
  EXPECT_EQ(to_json(read.value()), to_json(file));
}

TEST(StrategyFile, IsTextThatPeopleCanRead) {
  StrategyFile file = small_file();
  file.strategy = core::uniform({{{0, 0, 10}, {1, 0, 3000}}, {{3, 0, 7}}}, core::plain_all_reduce(), 2);
  file.strategy.buckets[1].due = core::Due::forward;
  file.model = 0xabc;
  EXPECT_EQ(to_json(file), R"({
"schema": "gradtune.strategy/2",
"model": "0000000000000abc",
"world_size": 2,
"fidelity": "half",
"label": "bf16 gather, 2 buckets",
"tensors": ["fc.bias","fc.weight","embed","conv \"1\""],
"buckets": [
{"option":"all_reduce","due":"backward","slices":[{"tensor":"fc.bias","offset":0,"length":10},{"tensor":"fc.weight","offset":0,"length":3000}]},
{"option":"all_reduce","due":"forward","slices":[{"tensor":"conv \"1\"","offset":0,"length":7}]}
],
"order": [[0,0],[1,0]],
"in_flight": 2,
"evidence": {"baseline_ms":228.1,"committed_ms":104.3,"gain":0.5427,"interval":[0.531,0.554],"steps":212,"date":"2025-01-31T12:00:00Z"}
}
)");
}

TEST(StrategyFile, AnyStrategySurvives) {
  core::Rng rng(11);
  const core::Option options[] = {core::plain_all_reduce(), core::encoded_all_reduce({"bf16"}, core::Place::host),
                                  core::two_step({"fp16"}, core::Place::device),
                                  core::gather_payloads({"topk", 0.013}, core::Place::device),
                                  core::two_step({"efsignsgd", 64}, core::Place::host)};
  for (int round = 0; round < 200; ++round) {
    core::GradientTable table;
    for (uint64_t t = 0, count = rng.below(9); t < count; ++t) {
      const auto numel = static_cast<int64_t>(rng.below(5000));
      table.tensors.push_back({.name = "layer." + std::to_string(t) + (rng.below(4) == 0 ? "\n\t\\\"é" : ""),
                               .shape = {numel},
                               .numel = numel,
                               .dtype = static_cast<DType>(rng.below(3))});
    }
    core::Strategy strategy = core::uniform(core::cut(table, 1 + static_cast<int64_t>(rng.below(4000)), 4096, true),
                                            options[rng.below(5)], 1 + static_cast<int>(rng.below(9)));
    for (core::Bucket& bucket : strategy.buckets) {
      bucket.option = options[rng.below(5)];
      if (rng.below(2) == 0) bucket.due = core::Due::forward;
    }
    strategy.order = core::staggered_order(strategy.buckets, 1 + static_cast<int>(rng.below(3)));
    StrategyFile file = file_of(table, std::move(strategy));
    file.fidelity = Fidelity::lossy;
    file.world_size = 1 + static_cast<int>(rng.below(100));
    if (rng.below(2) == 0) {
      file.evidence = Evidence{{.baseline_ms = rng.uniform() * 1e4,
                                .committed_ms = rng.uniform() * 1e4,
                                .gain = rng.normal() - 6,
                                .gain_low = -rng.uniform() / 3,
                                .gain_high = rng.uniform() / 3},
                               static_cast<int64_t>(rng.below(1u << 31)),
                               ""};
    }
    const auto read = parse_strategy(to_json(file), known());
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read.value(), file);
    const auto fitted = fit(read.value(), table, file.world_size, Fidelity::lossy, known());
    ASSERT_TRUE(fitted.ok()) << fitted.error().message;
    EXPECT_EQ(fitted.value(), table);
  }
}

TEST(StrategyFile, EveryTruncationIsRefused) {
  const std::string text = to_json(small_file());
  for (size_t length = 0; length + 2 < text.size(); ++length) {  // without the last brace it is incomplete
    const auto file = parse_strategy(std::string_view(text).substr(0, length), known());
    ASSERT_FALSE(file.ok()) << length;
    EXPECT_FALSE(file.error().message.empty());
  }
}

TEST(StrategyFile, EveryByteChangedIsRefusedOrAnotherSoundFile) {
  const std::string text = to_json(small_file());
  for (size_t at = 0; at < text.size(); ++at) {
    for (char c : {'\0', '"', '{', ']', '9', '-', 'e', '\x80'}) {
      std::string changed = text;
      changed[at] = c;
      const auto file = parse_strategy(changed, known());
      if (!file.ok()) continue;
      EXPECT_EQ(parse_strategy(to_json(file.value()), known()).value(), file.value());
      (void)fit(file.value(), small_table(), 2, Fidelity::half,
                known());  // any content, without harm
    }
  }
}

TEST(StrategyFile, NamesTheKeyThatIsUnknownMissingOrTwice) {
  const std::string text = to_json(small_file());
  EXPECT_THAT(error_of(replaced(text, "\"in_flight\": 2", "\"in_flight\": 2, \"x\": 1")),
              HasSubstr("file: the key \"x\" is unknown; known are schema, model, world_size"));
  EXPECT_THAT(error_of(replaced(text, "\"in_flight\": 2,", "")), HasSubstr("the key \"in_flight\" is missing"));
  EXPECT_THAT(error_of(replaced(text, "\"in_flight\": 2", "\"in_flight\": 2, \"in_flight\": 3")),
              HasSubstr("the key \"in_flight\" stands twice"));
  EXPECT_THAT(error_of(replaced(text, "\"offset\":0", "\"offset\":0,\"Length\":1")),
              HasSubstr("buckets[0].slices[0]: the key \"Length\" is unknown; known are tensor, offset, length"));
  EXPECT_THAT(error_of(replaced(text, "\"gain\":", "\"gian\":")), HasSubstr("evidence: the key \"gian\" is unknown"));
}

TEST(StrategyFile, NamesTheSchemaThatItDoesNotKnow) {
  EXPECT_THAT(error_of(replaced(to_json(small_file()), "strategy/2", "strategy/1")),
              HasSubstr("schema: \"gradtune.strategy/2\" is needed, found \"gradtune.strategy/1\""));
  EXPECT_THAT(
      error_of(R"({"schema": "gradtune.journal/1", "world_size": 2})"),
      HasSubstr("this is a journal, which \"gradtune report\", \"trace\" and \"cost\" take; a strategy is needed"));
  EXPECT_THAT(error_of("{}"), HasSubstr("the key \"schema\" is missing"));
  EXPECT_THAT(error_of("[]"), HasSubstr("file: an object is needed, found an array of 0"));
}

TEST(StrategyFile, NamesTheValueThatIsOutOfRange) {
  const std::string text = to_json(small_file());
  const auto expect = [&](std::string_view what, std::string_view by, std::string_view error) {
    EXPECT_THAT(error_of(replaced(text, what, by)), HasSubstr(std::string(error)));
  };
  expect("\"world_size\": 2", "\"world_size\": 0", "world_size: an integer from 1 to 1000000 is needed, found 0");
  expect("\"world_size\": 2", "\"world_size\": 2.5", "world_size: an integer from 1 to 1000000 is needed, found 2.5");
  expect("\"world_size\": 2", "\"world_size\": \"2\"", "found \"2\"");
  expect("\"world_size\": 2", "\"world_size\": 18446744073709551615", "the integer 18446744073709551615 is too large");
  expect("\"in_flight\": 2", "\"in_flight\": -1", "in_flight: an integer from 1 to 10000 is needed, found -1");
  expect("\"offset\":0", "\"offset\":-1", "buckets[0].slices[0].offset: an integer from 0");
  expect("\"due\":\"backward\"", "\"due\":\"later\"",
         "buckets[0].due: \"later\" is unknown; known are backward and forward");
  expect("\"length\":10", "\"length\":0", "buckets[0].slices[0].length: an integer from 1");
  expect("\"length\":10", "\"length\":9223372036854775807", "buckets[0].slices[0].length: an integer from 1");
  expect("\"tensor\":\"fc.bias\"", "\"tensor\":\"fc\"",
         "buckets[0].slices[0].tensor: \"fc\" is not among the file's tensors");
  expect("[\"fc.bias\",\"fc.weight\"", "[\"fc.bias\",\"fc.bias\"", "tensors[1]: \"fc.bias\" stands there twice");
  expect("\"fidelity\": \"half\"", "\"fidelity\": \"full\"",
         "fidelity \"full\" is unknown; known are exact, half and lossy");
  expect("\"order\": [[0,1]", "\"order\": [[9,1]", "order[0][0]: an integer from 0");
  expect("\"order\": [[0,1]", "\"order\": [[0,3]", "order[0][1]: an integer from 0 to 2 is needed, found 3");
  expect("\"order\": [[0,1]", "\"order\": [[0]", "order[0]: [bucket, step] is needed");
  expect("\"option\":\"bf16:", "\"option\":\"bf17:",
         "buckets[0].option: compressor \"bf17\" is unknown (did you mean \"bf16\"?); known are none");
  expect("all_gather", "all_gathe", "buckets[0].option: step \"all_gathe\" is unknown");
  expect("\"gain\":0.5427", "\"gain\":1.5", "evidence.gain: a number from");
  expect("[0.531,0.554]", "[0.531]", "evidence.interval: [low, high] is needed");
  expect("2025-01-31", "yesterday", "evidence.date: a date such as 2025-01-31T12:00:00Z is needed");
}

TEST(StrategyFile, TheModelIsSixteenDigits) {
  const StrategyFile file = small_file();
  const std::string text = to_json(file), at = "\"model\": \"";
  const std::string digits = text.substr(text.find(at) + at.size(), 16);
  for (const std::string& bad : {std::string("0x12"), std::string(), digits.substr(1), "+" + digits.substr(1),
                                 std::string("0123456789ABCDEF")}) {
    EXPECT_THAT(error_of(replaced(text, digits, bad)), HasSubstr("model: 16 digits 0-9a-f are needed")) << bad;
  }
}

TEST(StrategyFile, LimitsHoldBeforeAnythingElse) {
  EXPECT_THAT(error_of(std::string((1 << 28) + 1, ' ')), HasSubstr("268435457 bytes; at most 268435456 are read"));
  EXPECT_THAT(parse_json(std::string((1 << 20) + 1, ' '), {}).error().message,
              HasSubstr("1048577 bytes; at most 1048576 are read"));
  EXPECT_THAT(error_of(std::string(17, '[')), HasSubstr("nested deeper than 16"));
  std::string many = "[0";
  for (int i = 0; i < 100'000; ++i) many += ",0";
  EXPECT_THAT(parse_json(many + "]", {}).error().message, HasSubstr("more than 100000 values"));
  EXPECT_THAT(error_of(many + "]"), HasSubstr("file: an object is needed")) << "a job may have as many";
  std::string wide = "{";
  for (int i = 0; i <= 64; ++i) wide += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  EXPECT_THAT(error_of(wide + "}"), HasSubstr("an object has more than 64 members"));
  EXPECT_THAT(error_of("{\"a\": 1e999}"), HasSubstr("not JSON at byte"));
  EXPECT_THAT(error_of("{} {}"), HasSubstr("not JSON at byte"));
  EXPECT_THAT(error_of("{\"\xff\": 1}"), HasSubstr("not JSON at byte"));
}

// --- whether a file fits a job ---------------------------------------------------------------------------------------

std::string misfit(const StrategyFile& file, const core::GradientTable& table, int world_size = 2,
                   Fidelity fidelity = Fidelity::half) {
  const auto fitted = fit(file, table, world_size, fidelity, known());
  if (fitted.ok()) return "fits";
  EXPECT_EQ(fitted.error().code, core::Error::Code::mismatch);
  return fitted.error().message;
}

TEST(StrategyFileFit, PutsTheTableIntoTheFilesOrder) {
  const StrategyFile file = small_file();
  core::GradientTable table = small_table();
  std::reverse(table.tensors.begin(), table.tensors.end());
  const auto fitted = fit(file, table, 2, Fidelity::half, known());
  ASSERT_TRUE(fitted.ok()) << fitted.error().message;
  EXPECT_EQ(fitted.value(), small_table());
}

TEST(StrategyFileFit, NamesAnotherModel) {
  core::GradientTable table = small_table();
  table.tensors[1].shape = {300, 10};
  EXPECT_THAT(misfit(small_file(), table), HasSubstr("another model: names, shapes or dtypes differ"));
  table = small_table();
  table.tensors[1].dtype = DType::f16;
  EXPECT_THAT(misfit(small_file(), table), HasSubstr("another model"));
}

TEST(StrategyFileFit, NamesAnotherWorldSize) {
  EXPECT_EQ(misfit(small_file(), small_table(), 4), "it is for 2 ranks, this job has 4");
}

TEST(StrategyFileFit, NamesAFidelityThatTheJobDoesNotAllow) {
  EXPECT_EQ(misfit(small_file(), small_table(), 2, Fidelity::exact), "it is for fidelity half, this job allows exact");
  EXPECT_EQ(misfit(small_file(), small_table(), 2, Fidelity::lossy), "fits");
  StrategyFile liar = small_file();
  liar.fidelity = Fidelity::exact;
  EXPECT_EQ(misfit(liar, small_table(), 2, Fidelity::exact), "its compressors need fidelity half, it says exact");
}

TEST(StrategyFileFit, NamesTensorsThatDoNotMatch) {
  StrategyFile file = small_file();
  file.tensors[2] = "other";
  EXPECT_EQ(misfit(file, small_table()), "tensor \"other\" of the file is not in this model");
  file.tensors.erase(file.tensors.begin() + 2);
  EXPECT_THAT(misfit(file, small_table()), HasSubstr("tensor \"embed\" of this model is not in the file"));
}

TEST(StrategyFileFit, NamesAHoleInTheBuckets) {
  StrategyFile file = small_file();
  file.strategy.buckets[0].slices[0].length = 9;
  EXPECT_THAT(misfit(file, small_table()), HasSubstr("does not follow the slice before it"));
  file = small_file();
  file.strategy.order.pop_back();
  EXPECT_THAT(misfit(file, small_table()), HasSubstr("collectives"));
}

// --- files -----------------------------------------------------------------------------------------------------------

class Files : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }

  const test::TempFolder folder_;
};

TEST_F(Files, ReadsWhatWasWrittenAndLeavesNothingElse) {
  for (const std::string& text : {std::string("old"), std::string(), std::string(200'000, 'x')}) {
    ASSERT_TRUE(write_file_atomically(path("a"), text).ok());
    EXPECT_EQ(read_file(path("a"), 1 << 20).value(), text);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(Files, ErrorsNameTheFileAndTheCause) {
  EXPECT_THAT(read_file(path("none"), 10).error().message,
              ::testing::AllOf(HasSubstr(path("none")), HasSubstr("No such file")));
  EXPECT_THAT(read_file(folder_.path(), 10).error().message, HasSubstr("Is a directory"));
  const core::Status status = write_file_atomically(path("no/such/folder"), "text");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, core::Error::Code::io);
  EXPECT_THAT(status.error().message, ::testing::AllOf(HasSubstr(path("no/such/folder")), HasSubstr("No such file")));
}

TEST_F(Files, AFileThatIsTooLargeIsRefusedWithoutReadingIt) {
  ASSERT_TRUE(write_file_atomically(path("a"), "12345").ok());
  EXPECT_TRUE(read_file(path("a"), 5).ok());
  EXPECT_THAT(read_file(path("a"), 4).error().message, HasSubstr("more than 4 bytes"));
  EXPECT_THAT(read_file("/dev/zero", 1 << 20).error().message, HasSubstr("too large"));
}

TEST_F(Files, ALinkStaysOneAndWhatItNamesIsWritten) {
  std::filesystem::create_directory(path("folder"));
  std::filesystem::create_symlink("folder/target", path("near"));
  std::filesystem::create_symlink(path("near"), path("far"));
  for (const std::string text : {"new", "again"}) {  // first the target does not exist
    ASSERT_TRUE(write_file_atomically(path("far"), text).ok());
    EXPECT_EQ(read_file(path("folder/target"), 10).value(), text);
  }
  EXPECT_TRUE(std::filesystem::is_symlink(path("near")) && std::filesystem::is_symlink(path("far")));
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(path("folder/target"))));
  std::filesystem::create_symlink("circle", path("circle"));
  EXPECT_THAT(write_file_atomically(path("circle"), "text").error().message, HasSubstr("Too many levels"));
}

TEST_F(Files, WhatIsNoRegularFileIsWrittenThrough) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_TRUE(write_file_atomically(path("pipe"), std::vector<std::string_view>{"for ", "whoever reads"}).ok());
  char text[100];
  EXPECT_EQ(std::string(text, static_cast<size_t>(::read(reader, text, sizeof text))), "for whoever reads");
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));

  std::filesystem::create_symlink("/dev/full", path("full"));
  for (const std::string& full : {path("full"), std::string("/dev/full")}) {
    EXPECT_THAT(write_file_atomically(full, "text").error().message,
                ::testing::AllOf(HasSubstr("can not write " + full), HasSubstr("No space left")));
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full") && std::filesystem::is_symlink(path("full")));
  EXPECT_TRUE(write_file_atomically("/dev/null", "text").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(Files, AFailedReplaceKeepsTheOldAndRemovesTheNew) {
  std::filesystem::create_directory(path("taken"));
  EXPECT_FALSE(write_file_atomically(path("taken"), "text").ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

}  // namespace
}  // namespace gradtune::tuner
