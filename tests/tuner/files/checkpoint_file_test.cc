// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/checkpoint_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tuner/files/strict_json.h"

namespace gradtune::tuner {
namespace {

using testing::HasSubstr;

constexpr Manifest kManifest{.id = 0xfeed, .step = 120, .world_size = 2, .model = 0xabc};

const std::string kResiduals("\0\0\x80\x3f\n{}", 7);

std::string rank_file(int rank = 1, const Manifest& manifest = kManifest) {
  const Sections sections{{"rank", "{\"step\":120}"}, {"residuals float32", kResiduals}, {"history", ""}};
  std::string text = rank_header(manifest, rank, sections);
  for (const auto& [name, bytes] : sections) text += bytes;
  return text;
}

std::string error_of(const std::string& text, const Manifest& manifest = kManifest, int rank = 1) {
  const auto sections = parse_rank_file(text, manifest, rank);
  return sections.ok() ? "" : sections.error().message;
}

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(CheckpointFile, AManifestIsReadAsItWasWritten) {
  const auto read = parse_manifest(to_json(kManifest));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value(), kManifest);
  const auto error = [](std::string_view what, std::string_view with) {
    return parse_manifest(replaced(to_json(kManifest), what, with)).error().message;
  };
  EXPECT_THAT(error("checkpoint/5", "checkpoint/2"),
              HasSubstr("schema: \"gradtune.checkpoint/5\" is needed, found \"gradtune.checkpoint/2\""));
  EXPECT_THAT(error("\"world_size\": 2", "\"world_size\": 0"), HasSubstr("world_size: an integer from 1"));
  EXPECT_THAT(error("feed", "fee"), HasSubstr("id: 16 digits"));
  EXPECT_THAT(error("\"step\": 120", "\"step\": -1"), HasSubstr("step: an integer from 0"));
  EXPECT_THAT(error("\"step\": 120,", ""), HasSubstr("the key \"step\" is missing"));
  EXPECT_FALSE(parse_manifest("").ok());
  EXPECT_FALSE(parse_manifest("[]").ok());
}

TEST(CheckpointFile, SectionsAreReadAsTheyWereWritten) {
  const std::string text = rank_file();
  const auto read = parse_rank_file(text, kManifest, 1);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value(), (Sections{{"rank", "{\"step\":120}"}, {"residuals float32", kResiduals}, {"history", ""}}));
}

TEST(CheckpointFile, FilesThatDoNotBelongTogetherAreNamed) {
  Manifest other = kManifest;
  other.id = 0xdead;
  other.step = 80;
  EXPECT_THAT(
      error_of(rank_file(1, other)),
      HasSubstr("it belongs to another checkpoint (000000000000dead of step 80 and 2 ranks; checkpoint.json names "
                "000000000000feed of step 120 and 2 ranks)"));
  EXPECT_THAT(error_of(rank_file(0)), HasSubstr("it is that of rank 0, rank 1's is needed"));
  other = kManifest;
  other.model = 0xdef;
  EXPECT_THAT(error_of(rank_file(1, other)), HasSubstr("it is for another model (fingerprint 0000000000000def"));
  EXPECT_THAT(error_of(replaced(rank_file(), "checkpoint/5", "checkpoint/6")),
              HasSubstr("found \"gradtune.checkpoint/6\""));
}

TEST(CheckpointFile, WhatIsCutOffIsRefused) {
  const std::string text = rank_file();
  for (size_t size = 0; size < text.size(); ++size) EXPECT_NE(error_of(text.substr(0, size)), "") << size;
  EXPECT_THAT(error_of(text.substr(0, text.size() - 1)),
              HasSubstr("it is cut off: section \"residuals float32\" has 7 bytes, 6 are"));
  EXPECT_THAT(error_of(text.substr(0, 20)), HasSubstr("the header, does not end"));
  EXPECT_THAT(error_of(text + "x"), HasSubstr("1 bytes follow after its last section"));
}

// Every byte is covered: in the header by agreement with the manifest, in the sections by checksums.
TEST(CheckpointFile, AnyChangedByteIsRefused) {
  const std::string text = rank_file();
  for (size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = text;
      other[at] = static_cast<char>(other[at] ^ (1 << bit));
      EXPECT_NE(error_of(other), "") << "byte " << at << ", bit " << bit << ": " << other.substr(0, at + 1);
    }
  }
  EXPECT_THAT(error_of(replaced(text, "{\"step\":120}", "{\"step\":121}")), HasSubstr("section \"rank\" was changed"));
}

TEST(CheckpointFile, NamesOfFilesSayOfWhichCheckpointAndRank) {
  EXPECT_EQ(rank_file_name(0xfeed, 12), "000000000000feed.rank-12");
  EXPECT_EQ(rank_of_other_file("000000000000feed.rank-12", 0xdead), 12);
  EXPECT_EQ(rank_of_other_file("000000000000feed.rank-12.aB3xYz", 0xdead), 12) << "left by a crash";
  EXPECT_EQ(rank_of_other_file("000000000000feed.rank-12", 0xfeed), -1) << "of this one";
  for (const char* name :
       {"checkpoint.json", "model.pt", "000000000000feed.rank-", "000000000000feed.rank-1x", "000000000000FEED.rank-1",
        "feed.rank-1", "000000000000feed.rank--1", "000000000000feed.rank-01", "000000000000feed.rank-12.txt", ""}) {
    EXPECT_EQ(rank_of_other_file(name, 0xdead), -1) << name;
  }
}

}  // namespace
}  // namespace gradtune::tuner
