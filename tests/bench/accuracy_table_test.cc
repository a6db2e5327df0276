// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The default lists must be those that the committed table of accuracies admits, and the guard must know that
// table's errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/compress/compressor.h"

namespace gradtune {
namespace {

using core::OptimizerFamily;
using nlohmann::json;

// The committed results of a benchmark for each training, by name; of two the later one counts.
std::map<std::string, json> table(const std::string& benchmark = "-accuracy") {
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(GRADTUNE_RESULTS)) {
    const std::string name = file.path().filename();
    if (name.find(benchmark) != std::string::npos && name.find("vs_ddp") == std::string::npos) files.push_back(file);
  }
  std::ranges::sort(files);
  std::map<std::string, json> rows;
  for (const auto& file : files) {
    const json results = json::parse(std::ifstream(file));
    for (const json& row : results["rows"]) rows[row["name"]] = row;
  }
  return rows;
}

// Rows of a compressor with its default parameter, in tasks with such an optimizer, and with the dense first steps
// of its jobs.
std::vector<json> rows_of(const core::CompressorSpec& codec, OptimizerFamily family) {
  const auto tasks = family == OptimizerFamily::sgd ? std::vector{"fashion", "resnet"} : std::vector{"text", "lstm"};
  const int dense = core::traits_of(codec, compress::known_traits())->dense_first;
  std::vector<json> found;
  for (const auto& [name, row] : table()) {
    const bool is_of_family = std::ranges::any_of(tasks, [&](const char* task) { return name.starts_with(task); });
    const bool is_as_listed = row.value("dense_steps", 0) == (family == OptimizerFamily::sgd ? 0 : dense);
    if (is_of_family && is_as_listed && name.ends_with(": " + codec.name)) found.push_back(row);
  }
  return found;
}

std::vector<core::CompressorSpec> lossy_ones(OptimizerFamily family) {
  const auto known = compress::known_traits();
  std::vector<core::CompressorSpec> lossy = core::default_list(core::Fidelity::lossy, family, known);
  std::erase_if(lossy, [&](const core::CompressorSpec& codec) {
    return core::traits_of(codec, known)->fidelity != core::Fidelity::lossy;
  });
  return lossy;
}

// The row has more steps than admission requires.
bool is_longer(const json& row) { return row["name"].get<std::string>().find("times as long") != std::string::npos; }

// All of its interval is beyond the limit.
bool is_refuted(const json& row) {
  const double goal = row["goal"], low = row["spread"][0], high = row["spread"][1];
  return row["unit"] == "%" ? high < goal : low > goal;
}

class AccuracyTable : public testing::TestWithParam<OptimizerFamily> {};
INSTANTIATE_TEST_SUITE_P(Families, AccuracyTable, testing::Values(OptimizerFamily::sgd, OptimizerFamily::adaptive),
                         [](const auto& family) { return family.param == OptimizerFamily::sgd ? "Sgd" : "Adaptive"; });

TEST_P(AccuracyTable, AdmitsWhatIsListed) {
  ASSERT_FALSE(lossy_ones(GetParam()).empty());
  for (const core::CompressorSpec& codec : lossy_ones(GetParam())) {
    std::vector<json> rows = rows_of(codec, GetParam());
    for (const json& row : rows) EXPECT_FALSE(is_longer(row) && is_refuted(row)) << row;
    std::erase_if(rows, is_longer);
    EXPECT_GE(rows.size(), 2U) << codec.name << ": of two models, or numbers of ranks";
    for (const json& row : rows) EXPECT_TRUE(row["met"].get<bool>()) << row;
  }
}

// For slow links.
TEST_P(AccuracyTable, AdmitsFewBits) {
  constexpr int64_t kElements = 1 << 20;
  const core::Matrix matrix{0, 1024, 1024};
  double fewest_bits = 32;
  for (const core::CompressorSpec& codec : lossy_ones(GetParam())) {
    const core::CompressorTraits& traits = *core::traits_of(codec, compress::known_traits());
    const auto bytes = static_cast<double>(core::usual_bytes(traits, codec, {kElements, {&matrix, 1}}));
    fewest_bits = std::min(fewest_bits, 8 * bytes / kElements);
  }
  EXPECT_LE(fewest_bits, GetParam() == OptimizerFamily::sgd ? 3 : 4.5);
}

TEST(AccuracyTable, IsWhatTheGuardKnowsOfErrors) {
  for (const OptimizerFamily family : {OptimizerFamily::sgd, OptimizerFamily::adaptive}) {
    for (const core::CompressorSpec& codec : lossy_ones(family)) {
      double most = 0;
      for (const json& row : rows_of(codec, family)) most = std::max(most, row.value("error", 0.0));
      for (const auto& [name, row] : table("-guard")) {
        const bool is_of_family = row.value("adaptive", false) == (family == OptimizerFamily::adaptive);
        if (is_of_family && row.value("compressor", "") == codec.name) most = std::max(most, row.value("error", 0.0));
      }
      if (most == 0) continue;  // measured before errors were
      EXPECT_NEAR(core::traits_of(codec, compress::known_traits())->seen_error.with(family), most, 0.005 + 0.05 * most)
          << codec.name;
    }
  }
}

}  // namespace
}  // namespace gradtune
