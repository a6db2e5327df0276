// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/launcher.h"

#include <gmock/gmock.h>

#include <map>

namespace gradtune {
namespace {

using testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [&variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

core::Result<LaunchInfo> info_of(const Variables& variables) { return launch_info(environment_of(variables)); }

std::optional<int> local_size_of(const Variables& variables) { return local_world_size(environment_of(variables)); }

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

TEST(Launcher, RanksOfThisNodeAsEachLauncherSays) {
  EXPECT_EQ(local_size_of({}), std::nullopt);
  EXPECT_EQ(local_size_of({{"LOCAL_WORLD_SIZE", "4"}, {"SLURM_TASKS_PER_NODE", "1"}}), 4) << "torchrun inside Slurm";
  EXPECT_EQ(local_size_of({{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"SLURM_TASKS_PER_NODE", "1"}}), 2);
  EXPECT_EQ(local_size_of({{"MPI_LOCALNRANKS", "8"}}), 8);
  EXPECT_EQ(local_size_of({{"SLURM_NTASKS_PER_NODE", "3"}}), 3);
  EXPECT_EQ(local_size_of({{"SLURM_TASKS_PER_NODE", "6"}, {"SLURM_STEP_TASKS_PER_NODE", "2"}}), 2)
      << "a step may have fewer tasks than its job";
}

TEST(Launcher, RanksOfANodeInSlurmsList) {
  const auto of_node = [](const char* list, const char* node) {
    return local_size_of({{"SLURM_TASKS_PER_NODE", list}, {"SLURM_NODEID", node}});
  };
  EXPECT_EQ(of_node("2(x3),1", "0"), 2);
  EXPECT_EQ(of_node("2(x3),1", "2"), 2);
  EXPECT_EQ(of_node("2(x3),1", "3"), 1);
  EXPECT_EQ(of_node("2(x3),1", "4"), std::nullopt);
  EXPECT_EQ(of_node("4,16(x2)", "1"), 16);
  for (const char* list : {"2(x", "x", "(x3)", "2(x-1)", "2(x99999999999999)", "0", ",", "2(x3", "-2"}) {
    EXPECT_EQ(of_node(list, "5"), std::nullopt) << list;
  }
  EXPECT_EQ(of_node("2(x3),1", "-1"), std::nullopt);
}

TEST(Launcher, SizesThatAreNoNumbersAreNotTaken) {
  EXPECT_EQ(local_size_of({{"LOCAL_WORLD_SIZE", "two"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), 2);
  EXPECT_EQ(local_size_of({{"LOCAL_WORLD_SIZE", "0"}}), std::nullopt);
}

TEST(Launcher, FirstHostOfANodeList) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("gpu[5]"), "gpu5");
  EXPECT_EQ(first_host("gpu[08,11-12]"), "gpu08");
}

}  // namespace
}  // namespace gradtune
