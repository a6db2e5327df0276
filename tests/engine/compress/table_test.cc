// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "engine/compress/compressor.h"
#include "engine/core/option.h"

namespace gradtune::compress {
namespace {

using core::CompressorSpec;
using core::Fidelity;

std::string error_of(const CompressorSpec& spec) {
  const auto result = make_compressor(spec);
  return result.ok() ? "" : result.error().message;
}

TEST(Table, NoneIsFirstAndNamesAreDistinct) {
  EXPECT_EQ(compressor_table().front().traits.name, "none");
  std::set<std::string_view> names;
  for (const core::CompressorTraits& traits : known_traits()) EXPECT_TRUE(names.insert(traits.name).second);
}

TEST(Table, ThePageListsTheDefaultsOfTheTable) {
  std::ifstream page(GRADTUNE_COMPRESSORS_PAGE);
  std::map<std::string, core::Listed> listed;
  for (std::string line; std::getline(page, line);) {
    if (std::ranges::count(line, '|') != 7 || line.find("| `") != 0) continue;
    const std::string before = line.substr(0, line.rfind('|'));
    const std::string last = before.substr(before.rfind('|'));
    core::Listed how = core::Listed::never;
    if (last.find("listed") != last.npos) how = core::Listed::always;
    if (last.find("for SGD") != last.npos) how = core::Listed::for_sgd;
    if (last.find("without SGD") != last.npos) how = core::Listed::for_adaptive;
    const std::string names = line.substr(0, line.find('|', 1));
    for (size_t at = names.find('`'); at != names.npos; at = names.find('`', names.find('`', at + 1) + 1)) {
      listed[names.substr(at + 1, names.find_first_of(":`", at + 1) - at - 1)] = how;
    }
  }
  ASSERT_EQ(listed.size(), known_traits().size());
  for (const core::CompressorTraits& traits : known_traits()) {
    ASSERT_TRUE(listed.contains(std::string(traits.name))) << traits.name;
    EXPECT_EQ(listed[std::string(traits.name)], traits.listed) << traits.name;
  }
}

TEST(Table, WhatEachFidelityUsesWithoutBeingAsked) {
  const auto list = [](Fidelity fidelity, core::OptimizerFamily family) {
    std::vector<std::string> names;
    for (const CompressorSpec& spec : core::default_list(fidelity, family, known_traits())) {
      names.push_back(core::to_string(spec));
    }
    return names;
  };
  using Family = core::OptimizerFamily;
  using testing::ElementsAre;
  for (const Family family : {Family::sgd, Family::adaptive}) {
    EXPECT_THAT(list(Fidelity::exact, family), ElementsAre("none", "packed", "rows"));
    EXPECT_THAT(list(Fidelity::half, family), ElementsAre("none", "packed", "bf16", "bf16packed", "rows"));
  }
  EXPECT_THAT(list(Fidelity::lossy, Family::adaptive),
              ElementsAre("none", "packed", "bf16", "bf16packed", "int8:256", "int4:64", "int4packed:256",
                          "int3packed:256", "rows"));
  EXPECT_THAT(list(Fidelity::lossy, Family::sgd),
              ElementsAre("none", "packed", "bf16", "bf16packed", "int8:256", "int3packed:256", "powersgd:16", "rows"));
}

TEST(Table, DefaultsAreAllowedAndSurvivePrinting) {
  for (const core::CompressorTraits& traits : known_traits()) {
    const CompressorSpec spec{std::string(traits.name), traits.parameter_default};
    EXPECT_EQ(error_of(spec), "");
    EXPECT_EQ(core::parse_compressor(core::to_string(spec), known_traits()).value(), spec);
    EXPECT_EQ(core::parse_compressor(traits.name, known_traits()).value(), spec);
  }
}

TEST(Table, SearchRangesAreAllowedAndHaveTheDefault) {
  const core::Matrix matrix{0, 1024, 1024};
  const core::Extent extent{1 << 20, {&matrix, 1}};
  for (const core::CompressorTraits& traits : known_traits()) {
    const std::vector<CompressorSpec> specs =
        core::parse_compressors(std::string(traits.name) + ":*", known_traits()).value();
    const CompressorSpec usual{std::string(traits.name), traits.parameter_default};
    EXPECT_THAT(specs, testing::Contains(usual)) << traits.name;
    EXPECT_EQ(specs.size() > 1, !traits.parameter_name.empty() && traits.name != "signum") << traits.name;
    for (const CompressorSpec& spec : specs) EXPECT_EQ(error_of(spec), "");
    for (size_t i = 1; i < specs.size(); ++i) {
      if (traits.name == "thc" || traits.takes_rows) continue;  // equally long for any parameter
      EXPECT_LT(core::payload_bytes(traits, specs[i], extent), core::payload_bytes(traits, specs[i - 1], extent));
    }
  }
}

TEST(Table, UnknownNamesAreErrorsThatListTheKnownOnes) {
  EXPECT_EQ(
      error_of({"gzip", 0}),
      "compressor \"gzip\" is unknown; known are none, packed, bf16, bf16packed, fp16, topk, threshk, dgc, efsignsgd, "
      "onebit, signsgd, signum, int8, int4, int4packed, int3packed, fp8e4m3, fp8e5m2, natural, qsgd, terngrad, "
      "randk, powersgd, thc, rows, coo, blocks");
}

TEST(Table, ParametersOutOfRangeAreErrorsThatSayWhatIsAllowed) {
  EXPECT_EQ(error_of({"bf16", 4}), "compressor bf16 takes no parameter");
  for (double density : {0.0, 1.5, -0.1}) {
    EXPECT_THAT(error_of({"topk", density}), testing::EndsWith("; allowed is a number from 1e-06 to 1"));
  }
  for (double block : {0.0, 4.0, 12.0, 64.5, 65544.0}) {
    EXPECT_THAT(error_of({"efsignsgd", block}),
                testing::EndsWith("; allowed is a number from 8 to 65536, a multiple of 8"));
  }
}

}  // namespace
}  // namespace gradtune::compress
