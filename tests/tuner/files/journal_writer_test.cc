// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/journal_writer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/compress/compressor.h"
#include "engine/core/version.h"
#include "tests/temp_folder.h"
#include "tests/tuner/journal_job.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::tuner {
namespace {

using ::testing::HasSubstr;

Job job() { return journal_job({{{.name = "a", .shape = {20, 5}, .numel = 100, .ready_us = 0.1}}}); }

std::string header() { return journal_header(job(), "1 Gbit/s"); }

TEST(JournalLine, OfTheHeader) {
  EXPECT_EQ(
      header(),
      R"({"schema":"gradtune.journal/3","gradtune":")" + std::string(core::version()) +
          R"(","world_size":4,"ranks_per_node":0,"fidelity":"lossy",)"
          R"("compressors":["none","topk:0.02"],"host_threads":1,"policy":"mergecomp","model":")" +
          fmt::format("{:016x}", job().table.fingerprint()) +
          R"(","network":"1 Gbit/s",)"
          R"("tuning":{"seed":7,"budget_steps":400,"budget_share":0.25,"lossy_after":3,"retune":true},"collectives_at_once":1})");
}

TEST(JournalLine, TheHeaderHasWhatCollectivesTookOverIdleLinks) {
  Job measured = job();
  measured.machine.idle_links = {.flat = {105.5, 90}, .inter = {100, 80.25}, .intra = {12, 0, 0.5}};
  EXPECT_THAT(journal_header(measured, ""),
              HasSubstr(R"("idle_links":{"flat":{"message_us":105.5,"wait_us":90.0,"byte_us":0.0},)"
                        R"("inter":{"message_us":100.0,"wait_us":80.25,"byte_us":0.0},)"
                        R"("intra":{"message_us":12.0,"wait_us":0.0,"byte_us":0.5}})"));
}

TEST(JournalLine, TheHeaderSaysWhyTheseCompressors) {
  Job named = job();
  named.codecs_from = "named";
  EXPECT_THAT(journal_header(named, ""), HasSubstr(R"("compressors_from":"named")"));
}

TEST(JournalLine, TheHeaderSaysWhatCarriesGradientsIfThatIsKnown) {
  EXPECT_THAT(journal_header(job(), "", "nccl: why"), HasSubstr(R"("transport":"nccl: why")"));
  EXPECT_THAT(header(), testing::Not(HasSubstr("transport")));
}

TEST(JournalLine, OfTheTable) {
  EXPECT_EQ(
      journal_line(job().table),
      R"({"kind":"table","forward_us":0.0,"update_element_us":0.0,"tensors":[{"name":"a","shape":[20,5],"dtype":"float32","ready_us":0.1}]})");
}

TEST(JournalLine, OfAStep) {
  const core::StepReport report{.step = 12,
                                .slot = 3,
                                .step_ms = 104.25,
                                .compute_ms_max = 80,
                                .compute_ms_min = 79.5,
                                .finite = true,
                                .excluded = false,
                                .prepared = false,
                                .failed = true};
  EXPECT_EQ(
      journal_line(report, Stage::race),
      R"({"kind":"step","step":12,"stage":"race","slot":3,"step_ms":104.25,"compute_ms_max":80.0,"compute_ms_min":79.5,)"
      R"("slowest_rank":-1,"comm_ms":0.0,"work_ms":0.0,)"
      R"("finite":true,"excluded":false,"prepared":false,"failed":true})");
}

TEST(JournalLine, OfADecision) {
  EXPECT_EQ(
      journal_line(Decision{40, Stage::confirm, Decision::What::commit, "bf16 \"gather\"", 0.125}),
      R"({"kind":"decision","step":40,"stage":"confirm","what":"commit","label":"bf16 \"gather\"","value":0.125})");
}

TEST(JournalLine, ANumberThatJsonDoesNotHaveIsNull) {
  EXPECT_THAT(journal_line(Decision{1, Stage::observe, Decision::What::measure, "", std::nan("")}),
              HasSubstr("\"value\":null"));
}

TEST(JournalLine, OfAPlanHoldsTheStrategyFileInOneLine) {
  const policies::Candidate candidate{core::uniform({{{0, 0, 60}}, {{0, 60, 40}}}, core::plain_all_reduce(), 2),
                                      "a\nb"};
  const std::string line = journal_plan_line(9, 2, job(), candidate);
  EXPECT_EQ(line.find('\n'), line.npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["step"], 9);
  EXPECT_EQ(json["slot"], 2);
  EXPECT_EQ(json["hash"], fmt::format("{:016x}", core::hash(candidate.strategy)));
  EXPECT_EQ(parse_strategy(json["strategy"].dump(), compress::known_traits()).value(),
            strategy_file(job().table, 4, core::Fidelity::lossy, "a\nb", candidate.strategy));
}

class WrittenJournal : public ::testing::Test {
 protected:
  std::string content() const { return read_file(path_, 1 << 20).value(); }
  const test::TempFolder folder_;
  const std::string path_ = folder_.path("journal");
};

TEST_F(WrittenJournal, StartsWithTheHeaderAndHoldsEveryLineInOrder) {
  {
    auto journal = Journal::open(path_, header());
    ASSERT_TRUE(journal.ok()) << journal.error().message;
    EXPECT_EQ(content(), header() + "\n") << "at once, so that a job that dies early leaves it";
    for (int64_t step = 0; step < 100; ++step) {
      EXPECT_TRUE(
          journal.value()->write(journal_line(Decision{step, Stage::race, Decision::What::measure, "a", 1})).ok());
    }
  }
  std::istringstream lines(content());
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(line, header());
  for (int64_t step = 0; step < 100; ++step) {
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(nlohmann::json::parse(line)["step"], step);
  }
  EXPECT_FALSE(std::getline(lines, line));
}

TEST_F(WrittenJournal, WritesSomeLinesAtATime) {
  auto journal = std::move(Journal::open(path_, header(), /*flush_lines=*/3)).value();
  const std::string head = content();
  ASSERT_TRUE(journal->write("1").ok());
  ASSERT_TRUE(journal->write("2").ok());
  EXPECT_EQ(content(), head);
  ASSERT_TRUE(journal->write("3").ok());
  EXPECT_EQ(content(), head + "1\n2\n3\n");
  ASSERT_TRUE(journal->write("4").ok());
  ASSERT_TRUE(journal->flush().ok());
  EXPECT_EQ(content(), head + "1\n2\n3\n4\n");
}

TEST_F(WrittenJournal, TwoAtOnceHaveTwoFiles) {
  const std::filesystem::path asked(path_ + ".jsonl");
  const std::string second = path_ + ".2.jsonl", third = path_ + ".3.jsonl";
  {
    const auto one = JournalPlace::claim(asked.string()), two = JournalPlace::claim(asked.string());
    const auto three = JournalPlace::claim(asked.string());
    ASSERT_TRUE(one.ok() && two.ok() && three.ok());
    EXPECT_EQ(one.value().path(), asked.string());
    EXPECT_EQ(two.value().path(), second);
    EXPECT_EQ(three.value().path(), third);
  }
  EXPECT_EQ(JournalPlace::claim(asked.string()).value().path(), asked.string()) << "the other one is closed";
  const auto device = JournalPlace::claim("/dev/null"), again = JournalPlace::claim("/dev/null");
  EXPECT_EQ(again.value().path(), "/dev/null") << "no file";
  const auto nowhere = JournalPlace::claim("/no/such/folder/journal");
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.error().message, "journal: can not open /no/such/folder/journal: No such file or directory");
}

TEST_F(WrittenJournal, ErrorsNameTheFileAndTheCause) {
  const auto journal = Journal::open("/no/such/folder/journal", header());
  ASSERT_FALSE(journal.ok());
  EXPECT_EQ(journal.error().code, core::Error::Code::io);
  EXPECT_EQ(journal.error().message, "journal: can not open /no/such/folder/journal: No such file or directory");
  const auto full = Journal::open("/dev/full", header());
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().message, "journal: can not write /dev/full: No space left on device");
}

}  // namespace
}  // namespace gradtune::tuner
