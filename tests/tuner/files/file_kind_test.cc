// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/file_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/compress/compressor.h"
#include "tests/tuner/journal_job.h"
#include "tuner/files/checkpoint_file.h"
#include "tuner/files/cost_file.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/journal_writer.h"
#include "tuner/files/printable.h"
#include "tuner/files/strategy_file.h"
#include "tuner/files/trace_file.h"

namespace gradtune::tuner {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

core::GradientTable table() { return {{{.name = "w", .shape = {30}, .numel = 30, .ready_us = 2}}}; }

// One file of each kind, as gradtune writes it.
std::vector<std::pair<FileKind, std::string>> files() {
  const Job job = journal_job(table());
  const core::Strategy strategy = core::uniform({{{0, 0, 30}}}, core::plain_all_reduce(), 1);
  return {{FileKind::journal, journal_header(job, "") + "\n" + journal_line(job.table) + "\n"},
          {FileKind::trace, to_json(TraceFile{.model = "m", .table = table()})},
          {FileKind::cost, to_json(policies::CostTable{.ranks = {.size = 2}})},
          {FileKind::strategy, to_json(strategy_file(table(), 2, core::Fidelity::exact, "s", strategy))},
          {FileKind::checkpoint, to_json(Manifest{.id = 1, .world_size = 2})}};
}

std::string error_as(FileKind kind, std::string_view text) {
  const auto message = [](const auto& read) { return read ? std::string() : read.error().message; };
  const core::TraitsTable known = compress::known_traits();
  switch (kind) {
    case FileKind::journal: return message(parse_journal(text));
    case FileKind::trace: return message(parse_trace(text));
    case FileKind::cost: return message(parse_cost(text, known));
    case FileKind::strategy: return message(parse_strategy(text, known));
    case FileKind::checkpoint: return message(parse_manifest(text));
  }
  return "unknown";
}

TEST(FileKind, EmptyAndCompressedFilesAreNamed) {
  for (const auto& [kind, ignored] : files()) {
    EXPECT_THAT(error_as(kind, ""), HasSubstr("the file is empty; a"));
    EXPECT_THAT(error_as(kind, "\x1f\x8b\x08"), HasSubstr("the file is compressed by gzip; a"));
    EXPECT_THAT(error_as(kind, "{\"schema\": "), Not(HasSubstr("line 1, column")));
  }
}

TEST(FileKind, EveryKindIsKnownAndSaidWhereAnotherIsNeeded) {
  for (const auto& [kind, text] : files()) {
    EXPECT_EQ(kind_of(text), kind) << text;
    for (const auto& [needed, ignored] : files()) {
      if (needed == kind) {
        EXPECT_EQ(error_as(needed, text), "");
      } else {
        EXPECT_THAT(error_as(needed, text), testing::AllOf(StartsWith("this is a"), HasSubstr(" is needed")));
      }
    }
  }
  EXPECT_EQ(error_as(FileKind::journal, files()[1].second),
            "this is a trace, which \"gradtune replay\" takes; a journal is needed");
  EXPECT_THAT(error_as(FileKind::journal, R"({"model": "published", "tensors": []})"), StartsWith("this is a trace"));
}

TEST(FileKind, WhatIsNoneOfThemIsReadAsWhatIsNeeded) {
  for (const std::string text : {"", "{}", "PK\x03\x04", "<!DOCTYPE html>", R"({"schema":"other/1"})"}) {
    EXPECT_EQ(kind_of(text), std::nullopt) << text;
    for (const auto& [needed, ignored] : files()) {
      EXPECT_THAT(error_as(needed, text), testing::Not(testing::AnyOf("", HasSubstr("this is a ")))) << text;
    }
  }
}

TEST(Printable, LeavesNothingThatATerminalObeys) {
  using namespace std::string_view_literals;
  EXPECT_EQ(printable("f\xC3\xBCr 8 \xE2\x82\xAC\tand\n"), "f\xC3\xBCr 8 \xE2\x82\xAC\tand\n");
  const std::string bad(kReplacement);
  EXPECT_EQ(printable("\x1b[31mred"), bad + "[31mred");
  EXPECT_EQ(printable("a\rb\x7F\b\0c"sv), "a" + bad + "b" + bad + bad + bad + "c");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m \x9B"
                      "31m"),
            bad + bad + "31m " + bad + "31m")
      << "as one character, and as a byte";
  EXPECT_EQ(printable("\xE2\x80\xAE"), bad + bad + bad) << "turns the direction of text";
  EXPECT_EQ(printable(printable("\x1b\xFF")), bad + bad);
}

TEST(Printable, WhatAFileHoldsIsSoInItsErrorsAndLabels) {
  EXPECT_EQ(error_as(FileKind::trace, R"({"model":"\u001b[2J","tensors":[],"\u001b]":1})"),
            "trace: the key \"" + std::string(kReplacement) +
                "]\" is unknown; known are model, tensors, order, "
                "ready_us, source");
  std::string text = files()[3].second;
  text.replace(text.find("\"s\""), 3, R"("\u001b[2J")");
  EXPECT_EQ(parse_strategy(text, compress::known_traits()).value().label, std::string(kReplacement) + "[2J");
}

}  // namespace
}  // namespace gradtune::tuner
