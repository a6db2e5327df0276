// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/launcher.h"

#include <gmock/gmock.h>

#include <map>

namespace gradtune {
namespace {

using testing::HasSubstr;

core::Result<LaunchInfo> info_of(const std::map<std::string, std::string>& variables) {
  return launch_info([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(Launcher, NoneIsAGroupOfOne) { EXPECT_EQ(info_of({}).value(), LaunchInfo{}); }

TEST(Launcher, Torchrun) {
  const auto info = info_of({{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"SLURM_PROCID", "0"},
                             {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(info.value(), (LaunchInfo{3, 4, "torchrun", "node1", 29500, true})) << "torchrun inside Slurm is torchrun";
}

TEST(Launcher, SlurmFindsHostAndPort) {
  const auto info = info_of({{"SLURM_PROCID", "1"},
                             {"SLURM_NTASKS", "2"},
                             {"SLURM_STEP_NODELIST", "node[03-07,12],x1"},
                             {"SLURM_JOB_ID", "4711"}});
  EXPECT_EQ(info.value(), (LaunchInfo{1, 2, "Slurm", "node03", 24711, false}));
}

TEST(Launcher, SlurmWithPmi2IsSlurmAndAnMpirunInsideItIsNot) {
  std::map<std::string, std::string> variables = {{"SLURM_PROCID", "1"},    {"SLURM_NTASKS", "2"},
                                                  {"PMI_RANK", "1"},        {"PMI_SIZE", "2"},
                                                  {"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_NODELIST", "node[03-07]"}};
  EXPECT_EQ(info_of(variables).value(), (LaunchInfo{1, 2, "Slurm", "node03", 24711, false}));
  variables["PMI_SIZE"] = "8";  // two daemons with four ranks each
  variables["PMI_RANK"] = "5";
  EXPECT_THAT(info_of(variables).error().message, HasSubstr("MASTER_ADDR is not set"));
}

TEST(Launcher, MpirunOnOneMachineNeedsNoAddress) {
  const auto info = info_of({{"OMPI_COMM_WORLD_RANK", "0"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"MASTER_PORT", "1234"}});
  EXPECT_EQ(info.value(), (LaunchInfo{0, 2, "mpirun", "127.0.0.1", 1234, false}));
}

TEST(Launcher, ErrorsNameTheVariable) {
  EXPECT_THAT(info_of({{"RANK", "0"}}).error().message, HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(info_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}).error().message,
              testing::AllOf(HasSubstr("RANK is \"4\""), HasSubstr("0 to 3")));
  EXPECT_THAT(info_of({{"RANK", "x"}, {"WORLD_SIZE", "4"}}).error().message, HasSubstr("RANK is \"x\""));
  EXPECT_THAT(info_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).error().message, HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(
      info_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}).error().message,
      HasSubstr("65535"));
}

TEST(Launcher, FirstHostOfANodeList) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("gpu[5]"), "gpu5");
  EXPECT_EQ(first_host("gpu[08,11-12]"), "gpu08");
}

}  // namespace
}  // namespace gradtune
