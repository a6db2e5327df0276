// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/unknown_name.h"

#include <gtest/gtest.h>

#include <utility>

namespace gradtune::core {
namespace {

constexpr std::string_view kKnown[] = {"none", "topk", "threshk", "int3packed", "int4packed"};

TEST(UnknownName, SaysWhatIsKnownAndWhichNameWasMeant) {
  EXPECT_EQ(unknown_name("compressor", "topq:0.1", kKnown),
            "compressor \"topq:0.1\" is unknown (did you mean \"topk\"?); known are none, topk, threshk, int3packed, "
            "int4packed");
  EXPECT_EQ(unknown_name("compressor", "zip", kKnown),
            "compressor \"zip\" is unknown; known are none, topk, threshk, int3packed, int4packed");
}

TEST(UnknownName, TheNearestNameIsThatWithTheFewestEdits) {
  for (const auto& [word, meant] : {std::pair<std::string_view, std::string_view>{"TOPK", "topk"},
                                    {"tokp", "topk"},       // swapped
                                    {"topkk", "topk"},      // added
                                    {"treshk", "threshk"},  // left out
                                    {"int4paked", "int4packed"},
                                    {"noen", "none"}}) {
    EXPECT_EQ(did_you_mean(word, kKnown), " (did you mean \"" + std::string(meant) + "\"?)") << word;
  }
  for (const std::string_view word : {"", "t", "gzip", "tresk", "packed"})
    EXPECT_EQ(did_you_mean(word, kKnown), "") << word;
  EXPECT_EQ(did_you_mean(std::string(1'000'000, 'x'), kKnown), "");
}

}  // namespace
}  // namespace gradtune::core
