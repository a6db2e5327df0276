// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/options.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "hooks/c10d/allowed_cores.h"

namespace gradtune {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string error_of(const Options& options, const std::vector<std::string>& variables = {}) {
  const auto settings = resolve(options, variables);
  return settings ? "no error" : settings.error().message;
}

TEST(Options, ErrorsSayWhoseTheyAreWhereTheValueCameFromAndWhatIsAllowed) {
  EXPECT_THAT(error_of({.timeout = -5}),
              AllOf(StartsWith("gradtune: option timeout (argument) is \"-5.0\""), HasSubstr("from 0.01 to 1e+06")));
  EXPECT_THAT(error_of({.timeout = std::numeric_limits<double>::quiet_NaN()}), HasSubstr("is \"nan\""));
  EXPECT_THAT(error_of({.error_budget = std::numeric_limits<double>::infinity()}), HasSubstr("is \"inf\""));
  EXPECT_THAT(error_of({}, {"GRADTUNE_SEED=x"}), StartsWith("gradtune: option seed (variable GRADTUNE_SEED) is \"x\""));
  EXPECT_THAT(error_of({}, {"GRADTUNE_NOTHING=1"}), StartsWith("gradtune: variable GRADTUNE_NOTHING is unknown"));
  EXPECT_THAT(error_of({}, {"GRADTUNE_CONFIG=/nowhere"}),
              StartsWith("gradtune: variable GRADTUNE_CONFIG: can not open /nowhere: No such file"));
  EXPECT_THAT(error_of({.compressors = {{"zip"}}}), StartsWith("gradtune: option compressors (argument) is \"zip\": "));
}

TEST(Options, TimeoutIsThatOfTheGroupUnlessSomebodyGivesIt) {
  const auto timeout_ms = [](const Options& options, const std::vector<std::string>& variables) {
    return resolve(options, variables, std::chrono::seconds(3600)).value().timeout_ms;
  };
  EXPECT_EQ(timeout_ms({}, {}), 3'600'000);
  EXPECT_EQ(timeout_ms({}, {"GRADTUNE_TIMEOUT=7"}), 7'000);
  EXPECT_EQ(timeout_ms({.timeout = 2.5}, {"GRADTUNE_TIMEOUT=7"}), 2'500);
}

TEST(Options, ErrorsSayWhichNameWasMeant) {
  EXPECT_THAT(error_of({}, {"GRADTUNE_FIDELTY=half"}),
              StartsWith("gradtune: variable GRADTUNE_FIDELTY is unknown (did you mean \"FIDELITY\"?)"));
  EXPECT_THAT(error_of({}, {"GRADTUNE_CONFG=x"}), HasSubstr("(did you mean \"CONFIG\"?)"));
  EXPECT_THAT(error_of({.fidelity = "lossless"}), testing::Not(HasSubstr("did you mean")));
  EXPECT_THAT(error_of({.fidelity = "hlaf"}), HasSubstr("(did you mean \"half\"?)"));
  EXPECT_THAT(error_of({.policy = "mergcomp"}), HasSubstr("(did you mean \"mergecomp\"?)"));
  EXPECT_THAT(error_of({.collectives = "ncl"}), HasSubstr("allowed are auto, gloo and nccl (did you mean \"nccl\"?)"));
  EXPECT_THAT(error_of({.compressors = {{"topq:0.1"}}}), HasSubstr("(did you mean \"topk\"?)"));
  EXPECT_THAT(error_of({.compressors = {{"topk:0.1"}}}),
              HasSubstr("needs fidelity lossy, allowed is half; set option fidelity to lossy for it"));
}

TEST(Options, ListsMayHoldBlanksAndAreNotEmpty) {
  const auto codecs = [](const Options& options, const std::vector<std::string>& variables = {}) {
    std::string names;
    const Settings settings = resolve(options, variables).value();
    for (const core::CompressorSpec& codec : settings.codecs) names += codec.name + " ";
    return names;
  };
  EXPECT_EQ(codecs({.compressors = {{" bf16", "packed "}}}), "none bf16 packed ");
  EXPECT_EQ(codecs({}, {"GRADTUNE_COMPRESSORS= bf16 ,\tpacked"}), "none bf16 packed ");
  EXPECT_EQ(codecs({.compressors = {{"none"}}}), "none ");
  for (const std::vector<std::string>& none : {std::vector<std::string>{}, {""}, {" "}}) {
    EXPECT_THAT(error_of({.compressors = none}), HasSubstr("the list is empty; allowed are names"));
  }
  EXPECT_THAT(error_of({.compressors = {{"bf16", ""}}}), HasSubstr("compressor \"\" is unknown"));
  EXPECT_EQ(resolve({.strategy = "a.json, b.json"}, {}).value().strategy, "a.json,b.json");
  EXPECT_EQ(resolve({.strategy = "none"}, {"GRADTUNE_STRATEGY=a.json"}).value().strategy, "");
  for (const char* none : {"", " ", "a.json,", ",a.json"}) {
    EXPECT_THAT(error_of({.strategy = none}), HasSubstr("allowed are names of files")) << none;
  }
  EXPECT_THAT(error_of({.journal = ""}), HasSubstr("option journal (argument) is \"\": allowed is the name of a file"));
}

TEST(Options, FlagsAndNumbersAreReadAsPeopleWriteThem) {
  for (const char* yes : {"true", "True", "TRUE", "1", "yes", "On"}) {
    EXPECT_TRUE(resolve({}, {std::string("GRADTUNE_QUIET=") + yes}).value().quiet) << yes;
  }
  for (const char* no : {"false", "False", "0", "NO", "off"}) {
    EXPECT_FALSE(resolve({}, {std::string("GRADTUNE_QUIET=") + no}).value().quiet) << no;
  }
  EXPECT_THAT(error_of({}, {"GRADTUNE_QUIET=maybe"}), HasSubstr("allowed are true and false"));
  EXPECT_THAT(error_of({}, {"GRADTUNE_LOSSY_AFTER=1.5"}), HasSubstr("allowed is a whole number of steps from 0 to"));
  EXPECT_THAT(error_of({}, {"GRADTUNE_MEMORY_BUDGET=1G"}), HasSubstr("allowed is a whole number of bytes from 0 to"));
  EXPECT_THAT(error_of({.timeout = -1}), HasSubstr("allowed is a number of seconds from 0.01"));
  // Seeds in files have 63 bits.
  EXPECT_EQ(resolve({}, {"GRADTUNE_SEED=9223372036854775807"}).value().seed, uint64_t{INT64_MAX});
  EXPECT_THAT(error_of({}, {"GRADTUNE_SEED=9223372036854775808"}),
              HasSubstr("allowed is a whole number from 0 to 9223372036854775807"));
}

TEST(Options, WhatATerminalWouldObeyIsNotInErrors) {
  EXPECT_THAT(error_of({}, {"GRADTUNE_POLICY=\x1b[2J"}), testing::Not(HasSubstr("\x1b")));
}

// With any launcher, the ranks of one node share its cores, and each keeps one for the thread that trains.
TEST(Options, HostThreadsAreAShareOfTheNode) {
  const int64_t online = sysconf(_SC_NPROCESSORS_ONLN), allowed = allowed_cores().count;
  const auto host_threads = [] { return resolve({}, {}).value().host_threads; };
  unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_EQ(host_threads(), allowed - 1);
  for (const int64_t ranks : {int64_t{1}, int64_t{2}, online}) {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_TASKS_PER_NODE", "LOCAL_WORLD_SIZE"}) {
      setenv(name, std::to_string(ranks).c_str(), 1);
      EXPECT_EQ(host_threads(), std::max<int64_t>(0, std::min(allowed, online / ranks) - 1)) << name << "=" << ranks;
      unsetenv(name);
    }
  }
}

}  // namespace
}  // namespace gradtune
