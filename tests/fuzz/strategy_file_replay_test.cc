// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs the fuzz target of strategy files over its corpus, and over some thousand mutations and mixtures of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/rng.h"
#include "tuner/files/strategy_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace gradtune::tuner {
namespace {

struct Seed {
  std::string name, text;
};

std::vector<Seed> corpus() {
  std::vector<Seed> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(GRADTUNE_CORPUS)) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.push_back({entry.path().filename(), {std::istreambuf_iterator<char>(file), {}}});
  }
  std::sort(seeds.begin(), seeds.end(), [](const Seed& a, const Seed& b) { return a.name < b.name; });
  return seeds;
}

void run(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

// The names say which files are valid, so that a corpus that has lost its meaning is noticed.
TEST(StrategyFileCorpus, GoodFilesAreReadAndBadOnesRefused) {
  const std::vector<Seed> seeds = corpus();
  ASSERT_GE(seeds.size(), 20u);
  for (const Seed& seed : seeds) {
    run(seed.text);
    const auto file = parse_strategy(seed.text, compress::known_traits());
    EXPECT_EQ(file.ok(), seed.name.starts_with("good"))
        << seed.name << ": " << (file.ok() ? "read" : file.error().message);
  }
}

std::string mutate(std::string text, const std::vector<Seed>& seeds, core::Rng& rng) {
  for (uint64_t count = 1 + rng.below(4); count > 0; --count) {
    const size_t at = rng.below(text.size() + 1);
    const size_t length = std::min(text.size() - at, static_cast<size_t>(rng.below(30)));
    switch (rng.below(5)) {
      case 0: text.erase(at, length); break;
      case 1: text.insert(at, text.substr(at, length)); break;
      case 2: text.insert(at, 1, static_cast<char>(rng.below(256))); break;
      case 3: {
        const std::string& other = seeds[rng.below(seeds.size())].text;
        text.insert(at, other.substr(std::min(other.size(), at), length));
        break;
      }
      default: {
        constexpr const char* kTokens[] = {
            "{", "}", "[", "]", ",", ":", "\"", "null", "-1", "1e308", "9223372036854775808", "\\u0000", "0.5"};
        text.replace(at, length, kTokens[rng.below(std::size(kTokens))]);
      }
    }
  }
  return text;
}

TEST(StrategyFileCorpus, MutationsDoNoHarm) {
  const std::vector<Seed> seeds = corpus();
  ASSERT_FALSE(seeds.empty());
  core::Rng rng(2025);
  for (int round = 0; round < 5000; ++round) run(mutate(seeds[rng.below(seeds.size())].text, seeds, rng));
}

}  // namespace
}  // namespace gradtune::tuner
