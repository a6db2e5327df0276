// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/nccl_jobs.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <vector>

namespace gradtune::test {
namespace {

using testing::HasSubstr;

constexpr const char* kTrains = "trains over nccl";

DeviceJob over_nccl(const OverNccl& over, const Rank& rank, const DeviceJob& job) {
  DeviceJob placed = over.place(rank, job);
  placed.collectives = "nccl";
  return placed;
}

// The largest difference of two elements, relative to the largest element of their tensor.
double difference(const Parameters& a, const Parameters& b) {
  double largest = 0;
  for (size_t p = 0; p < a.size(); ++p) {
    const torch::Tensor apart = (a[p] - b[p]).abs().max() / a[p].abs().max();
    largest = std::max(largest, apart.item<double>());
  }
  return largest;
}

// Rank 1 gets the signal while both train without an end. Rank 0 has to end in time, with an error that names it.
void expect_rank_1_to_be_named(const OverNccl& over, int signal) {
  const auto body = [&](const Rank& rank) {
    DeviceJob job = over_nccl(over, rank, {.option = "all_reduce", .steps = 1'000'000, .timeout_s = 5});
    job.averaged = [steps = 0]() mutable {
      if (++steps != 3) return;
      std::puts(kTrains);
      std::fflush(stdout);
    };
    const auto group = make_group();
    std::puts(message_of([&] { train(rank, group, job); }).c_str());
  };
  const RankOptions options{
      .environment = over.environment, .kill_rank = 1, .kill_signal = signal, .kill_after_line = kTrains};
  const std::vector<RankEnd> ends = start_ranks(2, body, options);
  EXPECT_TRUE(ends[0].in_time) << ends[0].output;
  EXPECT_THAT(ends[0].output, HasSubstr("rank 1"));
}

}  // namespace

void expect_values_of_gloo(const OverNccl& over, int size) {
  const auto body = [&](const Rank& rank) {
    over.place(rank, {});  // the device has to be known first
    const auto group = make_group();
    for (const std::string_view option : kDeviceOptions) {
      const DeviceJob job{.option = std::string(option)};
      const Parameters over_gloo = train(rank, group, over.place(rank, job));
      const Parameters trained = train(rank, group, over_nccl(over, rank, job));
      const bool is_sum_of_many = size > 2 && option.find("all_reduce") != std::string_view::npos;
      if (is_sum_of_many) {
        EXPECT_LT(difference(over_gloo, trained), option == "all_reduce" ? 1e-5 : 0.05) << option;
      } else {
        EXPECT_TRUE(same_bits(over_gloo, trained)) << option;
      }
    }
    const DeviceJob bad{.option = kDeviceOptions[5], .bad_step = 2};
    EXPECT_TRUE(same_bits(train(rank, group, over.place(rank, bad)), train(rank, group, over_nccl(over, rank, bad))));
  };
  run_ranks(size, body, {.environment = over.environment});
}

void expect_bits_while_tuning(const OverNccl& over) {
  const auto body = [&](const Rank& rank) {
    const DeviceJob job = over_nccl(over, rank, {.fidelity = "exact", .steps = 60});
    const auto group = make_group();
    DeviceJob tuned = job;
    tuned.tuning_budget = 40;
    EXPECT_TRUE(same_bits(train(rank, group, job), train(rank, group, tuned)));
  };
  run_ranks(2, body, {.environment = over.environment});
}

void expect_a_dead_rank_to_be_named(const OverNccl& over) { expect_rank_1_to_be_named(over, SIGKILL); }

void expect_a_frozen_rank_to_be_named(const OverNccl& over) { expect_rank_1_to_be_named(over, SIGSTOP); }

}  // namespace gradtune::test
