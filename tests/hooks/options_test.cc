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
  EXPECT_THAT(error_of({}, {"GRADTUNE_CONFIG=/nowhere"}), AllOf(StartsWith("gradtune: "), HasSubstr("/nowhere")));
  EXPECT_THAT(error_of({.compressors = {{"zip"}}}), StartsWith("gradtune: option compressors (argument): "));
}

TEST(Options, TimeoutIsThatOfTheGroupUnlessSomebodyGivesIt) {
  const auto timeout_ms = [](const Options& options, const std::vector<std::string>& variables) {
    return resolve(options, variables, std::chrono::seconds(3600)).value().timeout_ms;
  };
  EXPECT_EQ(timeout_ms({}, {}), 3'600'000);
  EXPECT_EQ(timeout_ms({}, {"GRADTUNE_TIMEOUT=7"}), 7'000);
  EXPECT_EQ(timeout_ms({.timeout = 2.5}, {"GRADTUNE_TIMEOUT=7"}), 2'500);
}

// Whoever starts the ranks: those of one node share its cores, of which each keeps one for the thread that trains.
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
