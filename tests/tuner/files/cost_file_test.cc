// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/cost_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/compress/compressor.h"
#include "engine/core/version.h"

namespace gradtune::tuner {
namespace {

using core::Level;
using core::Place;
using testing::HasSubstr;
using Kind = core::Step::Kind;

const policies::CostTable kTable{.ranks = {.size = 8, .local_size = 2},
                                 .cores = {1.5, 1, 2, 0.25},
                                 .collectives = {{Kind::all_reduce, Level::flat, 150, 0.008, 120},
                                                 {Kind::gather, Level::inter, 80.5, 0},
                                                 {Kind::all_gather, core::dimension(2), 10, 0.25}},
                                 .codecs = {{{"topk", 0.01}, Place::host, 20, 1e-3, 5, 1e-5, 2e-4, 0.75},
                                            {{"bf16"}, Place::device, 1, 3e-4, 2, 4e-4, 0}},
                                 .scale_us = 3,
                                 .scale_element_us = 2e-4};

core::Result<policies::CostTable> parse(const std::string& text) { return parse_cost(text, compress::known_traits()); }

std::string error_of(std::string_view what, std::string_view with) {
  std::string text = to_json(kTable);
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  const auto table = parse(text.replace(at, what.size(), with));
  return table.ok() ? "" : table.error().message;
}

TEST(CostFile, IsReadAsItWasWritten) {
  const auto read = parse(to_json(kTable));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value(), kTable);
}

TEST(CostFile, OfAJobOnADeviceHasWhatCopiesTake) {
  policies::CostTable table = kTable;
  table.on_device = {.gradients = true, .collectives = true, .kernels = false};
  table.to_host = {10.5, 4e-5};
  table.to_device = {8.25, 3e-5};
  const auto read = parse(to_json(table));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value(), table);
  std::string text = to_json(table);
  const auto refused = parse(text.replace(text.find("8.25"), 4, "-1.0"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "cost.device.to_device.fixed_us: a number from 0 to 1000000000000 is needed, found -1");
}

TEST(CostFile, NamesWhatDoesNotFit) {
  EXPECT_EQ(error_of("gradtune.cost/5", "gradtune.cost/4"),
            "cost.schema: \"gradtune.cost/5\" is needed, found \"gradtune.cost/4\"; this is gradtune " +
                std::string(core::version()));
  EXPECT_THAT(error_of("\"schema\": \"gradtune.cost/5\"", "\"schema\": \"gradtune.cost/6\", \"more\": 1"),
              HasSubstr("found \"gradtune.cost/6\""))
      << "another schema has other keys";
  EXPECT_EQ(error_of("\"ranks_per_node\": 2", "\"ranks_per_node\": 3"),
            "cost.ranks_per_node: 3 does not divide the world size 8");
  EXPECT_EQ(error_of("\"of_rank\": 1.5", "\"of_rank\": -1"),
            "cost.cores.of_rank: a number from 0 to 1048576 is needed, found -1");
  EXPECT_THAT(error_of("\"gather\"", "\"scatter\""),
              HasSubstr("cost.collectives[1]: step \"scatter@inter\" is unknown"));
  EXPECT_THAT(error_of("\"gather\"", "\"decode\""), HasSubstr("cost.collectives[1]"));
  EXPECT_THAT(error_of("\"inter\"", "\"outer\""), HasSubstr("the level of a collective is"));
  EXPECT_THAT(error_of("\"gather\",\n   \"level\": \"inter\"", "\"all_reduce\",\n   \"level\": \"flat\""),
              HasSubstr("cost.collectives[1]: this collective has a rate already"));
  EXPECT_THAT(error_of("topk:0.01", "zip"), HasSubstr("cost.codecs[0].codec: compressor \"zip\" is unknown"));
  EXPECT_EQ(error_of("\"host\"", "\"gpu\""), "cost.codecs[0].place: \"gpu\"; allowed are device and host");
  EXPECT_EQ(error_of("\"use\": 0.75", "\"use\": 1.5"), "cost.codecs[0].use: a number from 0 to 1 is needed, found 1.5");
  EXPECT_EQ(error_of("80.5", "-1"),
            "cost.collectives[1].message_us: a number from 0 to 1000000000000 is needed, found -1");
  EXPECT_EQ(error_of("\"wait_us\": 120.0", "\"wait_us\": 151"),
            "cost.collectives[0].wait_us: a number from 0 to 150 is needed, found 151");
  EXPECT_THAT(error_of("\"byte_us\"", "\"bytes_us\""), HasSubstr("the key \"bytes_us\" is unknown"));
}

TEST(CostFile, EveryTruncationIsRefused) {
  const std::string text = to_json(kTable);
  for (size_t size = 0; size + 1 < text.size(); ++size) EXPECT_FALSE(parse(text.substr(0, size)).ok()) << size;
}

}  // namespace
}  // namespace gradtune::tuner
