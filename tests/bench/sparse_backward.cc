// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: bench_sparse_backward BUILD_FOLDER OUTPUT.json
//
// Measures the backward pass of a table of 400,000 x 64 with 512 rows read, on a group of one rank, so that no other
// rank is waited for. A twin without gradtune takes turns. Rows:
// - backward: us of backward(), beside plain LibTorch's
// - step: us of zero_grad, forward, backward and the update, beside plain LibTorch's
// - first: us of the first backward pass, which learns the kind of gradients, beside plain LibTorch's first
// - memory: MB that came into memory from wrap() to the end, beside those of the table. The goal is for the ratio.
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "gradtune/gradtune.h"
#include "tests/bench/support/results.h"

namespace gradtune::bench {
namespace {

constexpr int64_t kRows = 400'000, kWidth = 64, kIds = 512;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double resident_mb() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) * 1e-6;
}

struct Table : torch::nn::Module {
  Table() {
    rows = register_module("rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kWidth).sparse(true)));
  }
  torch::nn::Embedding rows{nullptr};
};

struct Times {
  double backward_us = 0, step_us = 0;
};

template <typename Optimizer>
Times one_step(Table& table, Optimizer& optimizer) {
  const torch::Tensor ids = torch::randint(kRows, {kIds});
  const double begin_us = now_us();
  optimizer.zero_grad();
  const torch::Tensor loss = table.rows->forward(ids).sum();
  const double backward_us = now_us();
  loss.backward();
  const double update_us = now_us();
  optimizer.step();
  return {update_us - backward_us, now_us() - begin_us};
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

template <typename Optimizer>
Times block(Table& table, Optimizer& optimizer) {
  constexpr int kSteps = 100;
  std::vector<double> backward_us, step_us;
  for (int s = 0; s < kSteps; ++s) {
    const Times one = one_step(table, optimizer);
    backward_us.push_back(one.backward_us);
    step_us.push_back(one.step_us);
  }
  return {median(backward_us), median(step_us)};
}

Row row(const std::string& name, const std::string& unit, const std::vector<double>& values,
        const std::vector<double>& anchors, std::optional<double> goal) {
  std::vector<double> ratios;
  for (size_t r = 0; r < values.size(); ++r) ratios.push_back(values[r] / anchors[r]);
  std::ranges::sort(ratios);
  Row row{.name = name,
          .value = median(values),
          .unit = unit,
          .anchor = median(anchors),
          .ratio = ratios[ratios.size() / 2],
          .spread = {ratios[ratios.size() / 4], ratios[ratios.size() * 3 / 4]},
          .goal = goal};
  if (goal) row.met = row.ratio <= *goal;
  std::printf("%-10s %10.2f %s, anchor %.2f, ratio %.3f\n", name.c_str(), row.value, unit.c_str(), median(anchors),
              ratios[ratios.size() / 2]);
  return row;
}

int run(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: bench_sparse_backward BUILD_FOLDER OUTPUT.json\n"), 2;
  at::set_num_threads(1);
  auto group = init_process_group();
  Table wrapped_table, plain_table;
  torch::optim::SGD inner(wrapped_table.parameters(), 1e-3), plain(plain_table.parameters(), 1e-3);
  const double plain_first_us = one_step(plain_table, plain).backward_us;
  const double before_mb = resident_mb();
  Options options;
  options.fidelity = "exact";
  options.quiet = true;
  options.tuning_budget = 0;
  Optimizer wrapped = wrap(inner, wrapped_table, group, options);
  const double first_us = one_step(wrapped_table, wrapped).backward_us;
  constexpr int kRounds = 31;
  std::vector<double> backward_us, plain_backward_us, step_us, plain_step_us;
  for (int r = -2; r < kRounds; ++r) {
    Times ours, theirs;
    for (const int which : {0, 1}) {
      (which + r) % 2 == 0 ? ours = block(wrapped_table, wrapped) : theirs = block(plain_table, plain);
    }
    if (r < 0) continue;  // warm
    backward_us.push_back(ours.backward_us);
    plain_backward_us.push_back(theirs.backward_us);
    step_us.push_back(ours.step_us);
    plain_step_us.push_back(theirs.step_us);
  }
  write_results(argc, argv,
                {row("backward", "us", backward_us, plain_backward_us, 1.2),
                 row("step", "us", step_us, plain_step_us, std::nullopt),
                 row("first", "us", {first_us}, {plain_first_us}, std::nullopt),
                 row("memory", "MB", {resident_mb() - before_mb}, {kRows * kWidth * 4e-6}, 0.1)});
  return 0;
}

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) { return gradtune::bench::run_benchmark(argc, argv, gradtune::bench::run); }
