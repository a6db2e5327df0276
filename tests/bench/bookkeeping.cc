// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: bench_bookkeeping [--parameters 200] [--elements 64] BUILD_FOLDER OUTPUT.json
//
// Measures gradtune's own time in a step on the thread that trains, for a model of many small parameters, on a group
// of one rank. So no other rank is waited for and nothing is averaged with others. The anchor is a twin of the model
// that trains in turn with it, without gradtune. Rows:
// - step: step(), in us, beside the optimizer's own; the ratio is of these
// - share: the excess of step() over the optimizer's own, as a share of a whole step without gradtune
// - allocations: the extra allocations of step() over the optimizer's own
// - whole: a whole step: zero_grad, backward, step; it includes the exchange with gradtune's own threads
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gradtune/gradtune.h"
#include "tests/bench/support/results.h"
#include "tests/engine/exec/counting_new.h"

namespace gradtune::bench {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct ManyImpl : torch::nn::Module {
  ManyImpl(int64_t parameters, int64_t elements) {
    for (int64_t p = 0; p < parameters; ++p) {
      all.push_back(register_parameter("p" + std::to_string(p), torch::ones({elements})));
    }
  }
  torch::Tensor forward() { return torch::stack(all).sum(); }
  std::vector<torch::Tensor> all;
};
TORCH_MODULE(Many);

struct Measured {
  double step_us = 0, whole_us = 0;
  int64_t allocations = 0;
};

template <typename Optimizer>
Measured one_step(ManyImpl& model, Optimizer& optimizer) {
  const double begin_us = now_us();
  optimizer.zero_grad();
  model.forward().backward();
  const int64_t before = exec::allocations_of_thread();
  const double step_us = now_us();
  optimizer.step();
  const double end_us = now_us();
  return {end_us - step_us, end_us - begin_us, exec::allocations_of_thread() - before};
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

// The median over a block of steps; allocations are the same in each step.
template <typename Optimizer>
Measured block(ManyImpl& model, Optimizer& optimizer) {
  constexpr int kSteps = 100;
  std::vector<double> step_us, whole_us, allocations;
  for (int s = 0; s < kSteps; ++s) {
    const Measured one = one_step(model, optimizer);
    step_us.push_back(one.step_us);
    whole_us.push_back(one.whole_us);
    allocations.push_back(static_cast<double>(one.allocations));
  }
  return {median(step_us), median(whole_us), static_cast<int64_t>(median(allocations))};
}

Row row(const std::string& name, const std::string& unit, std::vector<double> values, std::vector<double> anchors,
        std::optional<double> goal) {
  std::vector<double> ratios;
  for (size_t r = 0; r < values.size(); ++r) ratios.push_back(anchors[r] == 0 ? 0 : values[r] / anchors[r]);
  const double value = median(values);
  std::ranges::sort(ratios);
  Row row{.name = name,
          .value = value,
          .unit = unit,
          .anchor = median(anchors),
          .ratio = ratios[ratios.size() / 2],
          .spread = {ratios[ratios.size() / 4], ratios[ratios.size() * 3 / 4]},
          .goal = goal};
  if (goal) row.met = value <= *goal;
  std::printf("%-12s %10.4f %s, anchor %.4f, ratio %.4f\n", name.c_str(), value, unit.c_str(), median(anchors),
              ratios[ratios.size() / 2]);
  return row;
}

int run(int argc, char** argv) {
  int64_t parameters = 200, elements = 64;
  std::vector<std::string> rest;
  for (int a = 1; a < argc; ++a) {
    const std::string argument(argv[a]);
    if (argument == "--parameters" && a + 1 < argc) {
      parameters = std::atoll(argv[++a]);
    } else if (argument == "--elements" && a + 1 < argc) {
      elements = std::atoll(argv[++a]);
    } else {
      rest.push_back(argument);
    }
  }
  if (rest.size() != 2 || parameters < 1 || elements < 1) {
    std::fprintf(stderr, "usage: bench_bookkeeping [--parameters 200] [--elements 64] BUILD_FOLDER OUTPUT.json\n");
    return 2;
  }
  at::set_num_threads(1);
  auto group = init_process_group();
  Many wrapped_model(parameters, elements), plain_model(parameters, elements);
  torch::optim::SGD inner(wrapped_model->parameters(), 1e-3), plain(plain_model->parameters(), 1e-3);
  Options options;
  options.quiet = true;
  options.tuning_budget = 0;
  Optimizer wrapped = wrap(inner, *wrapped_model, group, options);
  constexpr int kRounds = 31;
  std::vector<double> step_us, plain_us, more_us, whole_us, plain_whole_us, allocations, plain_allocations;
  for (int r = -2; r < kRounds; ++r) {
    Measured ours, theirs;
    const auto both = {0, 1};
    for (const int which : both) {
      if ((which + r) % 2 == 0) {
        ours = block(*wrapped_model, wrapped);
      } else {
        theirs = block(*plain_model, plain);
      }
    }
    if (r < 0) continue;  // warm
    step_us.push_back(ours.step_us);
    plain_us.push_back(theirs.step_us);
    more_us.push_back(ours.step_us - theirs.step_us);
    whole_us.push_back(ours.whole_us);
    plain_whole_us.push_back(theirs.whole_us);
    allocations.push_back(static_cast<double>(ours.allocations));
    plain_allocations.push_back(static_cast<double>(theirs.allocations));
  }
  std::vector<double> shares, more_allocations;
  for (size_t r = 0; r < more_us.size(); ++r) shares.push_back(more_us[r] / plain_whole_us[r]);
  for (size_t r = 0; r < allocations.size(); ++r) more_allocations.push_back(allocations[r] - plain_allocations[r]);
  write_results(
      argc, argv,
      {row("step", "us", step_us, plain_us, std::nullopt), row("more", "us", more_us, plain_whole_us, std::nullopt),
       row("share", "of a step", shares, std::vector<double>(shares.size(), 1), 0.005),
       row("allocations", "a step()", more_allocations, plain_allocations, 0.0),
       row("whole", "us", whole_us, plain_whole_us, std::nullopt)});
  return 0;
}

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) { return gradtune::bench::run_benchmark(argc, argv, gradtune::bench::run); }
