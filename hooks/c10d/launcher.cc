// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/launcher.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace gradtune {
namespace {

// The names that each launcher gives to the same values, in the order in which launchers are tried. Inside torchrun
// under Slurm both sets exist, and torchrun's are used.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
};
constexpr std::string_view kPmiRank = "PMI_RANK";
constexpr int kMostRanks = 1 << 20;
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"mpirun", kPmiRank.data(), "PMI_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
};

core::Error wrong_environment(std::string message) { return {core::Error::Code::invalid, std::move(message)}; }

core::Result<int> number(const char* name, const std::string& text, int low, int high) {
  int value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < low || value > high) {
    return wrong_environment(std::string(name) + " is \"" + text + "\"; allowed is a number from " +
                             std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

// Reads Slurm's list of tasks per node, which joins neighbours of equal count: "2(x3),1" means 2, 2, 2 and 1.
std::optional<int> tasks_of_node(const std::string& list, int node) {
  std::stringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t times_at = word.find("(x");
    const auto tasks = number("tasks", word.substr(0, times_at), 1, kMostRanks);
    if (!tasks) return std::nullopt;
    int times = 1;
    if (times_at != std::string::npos) {
      const auto parsed = number("nodes", word.substr(times_at + 2, word.find(')') - times_at - 2), 1, kMostRanks);
      if (!parsed) return std::nullopt;
      times = parsed.value();
    }
    if (node < times) return tasks.value();
    node -= times;
  }
  return std::nullopt;
}

core::Status find_master(const Environment& environment, LaunchInfo& info) {
  if (const auto address = environment("MASTER_ADDR")) {
    info.master_address = *address;
  } else if (info.launcher == "Slurm" && environment("SLURM_STEP_NODELIST")) {
    info.master_address = first_host(*environment("SLURM_STEP_NODELIST"));
  } else if (info.launcher == "mpirun" &&
             environment("OMPI_COMM_WORLD_LOCAL_SIZE") == std::to_string(info.world_size)) {
    info.master_address = "127.0.0.1";  // all ranks are on this machine
  } else {
    return wrong_environment("MASTER_ADDR is not set; it names the host of rank 0 (launcher: " + info.launcher + ")");
  }
  if (const auto port = environment("MASTER_PORT")) {
    auto value = number("MASTER_PORT", *port, 1, 65535);
    if (!value) return value.error();
    info.master_port = value.value();
    return {};
  }
  if (info.launcher == "Slurm" && environment("SLURM_JOB_ID")) {
    auto job = number("SLURM_JOB_ID", *environment("SLURM_JOB_ID"), 0, INT32_MAX);
    if (!job) return job.error();
    info.master_port = 20000 + job.value() % 20000;  // the same for all ranks of a job, different for neighbouring jobs
    return {};
  }
  return wrong_environment("MASTER_PORT is not set; it is a free port on " + info.master_address);
}

}  // namespace

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::string node_name(const Environment& environment) {
  if (const auto name = environment("GRADTUNE_NODE")) return *name;
  std::string name;
  for (const char* file : {"/proc/sys/kernel/hostname", "/proc/sys/kernel/random/boot_id"}) {
    std::string line;
    std::getline(std::ifstream(file), line);
    name += line + ' ';
  }
  std::error_code ignored;
  return name + std::filesystem::read_symlink("/proc/self/ns/net", ignored).string();
}

std::optional<int> local_world_size(const Environment& environment) {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const auto text = environment(name);
    if (!text) continue;
    if (const auto ranks = number(name, *text, 1, kMostRanks)) return ranks.value();
  }
  const std::string node = environment("SLURM_NODEID").value_or("0");
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto tasks = environment(name);
    const auto index = number("SLURM_NODEID", node, 0, kMostRanks);
    if (!tasks || !index) continue;
    if (const auto ranks = tasks_of_node(*tasks, index.value())) return ranks;
  }
  if (const auto text = environment("SLURM_NTASKS_PER_NODE")) {
    if (const auto ranks = number("SLURM_NTASKS_PER_NODE", *text, 1, kMostRanks)) return ranks.value();
  }
  return std::nullopt;
}

std::string first_host(const std::string& node_list) {
  const size_t end = node_list.find_first_of("[,");
  std::string host = node_list.substr(0, end);
  if (end != std::string::npos && node_list[end] == '[') {
    const size_t stop = node_list.find_first_of(",-]", end + 1);
    host += node_list.substr(end + 1, stop == std::string::npos ? stop : stop - end - 1);
  }
  return host;
}

core::Result<LaunchInfo> launch_info(const Environment& environment) {
  LaunchInfo info;
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = environment(launcher.rank), size = environment(launcher.size);
    if (!rank && !size) continue;
    if (!rank || !size) {
      return wrong_environment(std::string(rank ? launcher.size : launcher.rank) + " is not set, but " +
                               (rank ? launcher.rank : launcher.size) + " is; a launcher sets both");
    }
    auto world_size = number(launcher.size, *size, 1, kMostRanks);
    if (!world_size) return world_size.error();
    auto own = number(launcher.rank, *rank, 0, world_size.value() - 1);
    if (!own) return own.error();
    info.launcher = launcher.name;
    // `srun --mpi=pmi2` sets PMI's variables too. If they agree with Slurm's, the process is a task of Slurm, not of
    // an mpirun whose daemons Slurm started.
    if (launcher.rank == kPmiRank && environment("SLURM_PROCID") == rank && environment("SLURM_NTASKS") == size) {
      info.launcher = "Slurm";
    }
    info.rank = own.value();
    info.world_size = world_size.value();
    if (info.world_size == 1 && !environment("MASTER_ADDR")) return info;
    if (core::Status status = find_master(environment, info); !status) return status.error();
    info.agent_store = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
    return info;
  }
  return info;
}

}  // namespace gradtune
