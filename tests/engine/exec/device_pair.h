// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Two fleets of the same ranks that take the same steps: one with all memory on the host, one with gradients on
// devices and communicators of the host.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "policies/space/decision_tree.h"
#include "tests/engine/exec/fleet.h"

namespace gradtune::exec {

class Pair {
 public:
  Pair(int size, int local_size, const core::GradientTable& table, const HostDeviceOptions& device = {},
       const ExecutorOptions& options = kWithHost)
      : table_(table),
        host_(make_groups(size, local_size), table, options),
        device_(make_groups(size, local_size), table, options, device) {}

  void run(const core::Strategy& strategy, bool for_good = false) {
    for (Fleet* fleet : {&host_, &device_}) for_good ? fleet->commit(strategy) : fleet->run(strategy);
  }

  // Returns true if both did the same.
  bool step(core::Rng& rng, bool looks_at_residuals = true) {
    std::vector<Values> gradients = random_gradients(table_, host_.size(), rng);
    for (int r = 0; r < host_.size(); ++r) {
      rng.shuffle(host_.rank(r).ready_order);
      device_.rank(r).ready_order = host_.rank(r).ready_order;
    }
    return step(gradients, looks_at_residuals);
  }
  bool step(const std::vector<Values>& gradients, bool looks_at_residuals = true) {
    bool same = true;
    const auto statuses = host_.step(gradients), on_device = device_.step(gradients);
    for (size_t r = 0; r < statuses.size(); ++r) {
      if (!on_device[r].ok()) message = on_device[r].error().message;
      same = same && statuses[r].ok() == on_device[r].ok();
    }
    if (!same || !statuses[0].ok()) return same;
    for (int r = 0; r < host_.size(); ++r) {
      same = same && bits(host_.rank(r).average()) == bits(device_.rank(r).average());
      const auto buckets = static_cast<int32_t>(host_.rank(r).executor().program().buckets.size());
      for (int32_t b = 0; b < buckets; ++b) {
        const core::BucketLoss here = host_.rank(r).executor().loss(b), there = device_.rank(r).executor().loss(b);
        same = same && alike(here.error, there.error) && alike(here.residual, there.residual);
      }
    }
    if (looks_at_residuals) same = same && host_.residuals() == device_.residuals();
    return same;
  }

  Fleet& host() { return host_; }
  Fleet& device() { return device_; }
  std::string message;  // of an error on a device

 private:
  static bool alike(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }
  static std::vector<uint32_t> bits(const Values& values) {
    std::vector<uint32_t> all;
    for (const float value : values) all.push_back(std::bit_cast<uint32_t>(value));
    return all;
  }

  const core::GradientTable table_;
  Fleet host_, device_;
};

inline std::vector<policies::Steps> tree() {
  using core::Place;
  constexpr Place kBoth[] = {Place::device, Place::host};
  std::vector<policies::Steps> all = policies::flat_programs(kBoth);
  for (policies::Steps& steps : policies::hierarchical_programs(kBoth)) all.push_back(std::move(steps));
  for (policies::Steps& steps : policies::flat_summing_programs(kBoth)) all.push_back(std::move(steps));
  for (policies::Steps& steps : policies::hierarchical_summing_programs(kBoth)) all.push_back(std::move(steps));
  return all;
}

// Every `stride`-th program of the decision tree and its extension, on two nodes of two ranks.
inline void conform(const core::GradientTable& table, const core::CompressorSpec& codec, size_t stride,
                    size_t first = 0) {
  Pair pair(4, 2, table);
  core::Rng rng(5);
  const std::vector<policies::Steps> programs = tree();
  for (size_t i = first; i < programs.size(); i += stride) {
    const std::string option = to_string(policies::with_codecs(programs[i], codec, codec));
    const core::Strategy strategy = make_strategy(table, option, 440, 1 + static_cast<int>(i % 4));
    if (!compile(strategy, table, core::seat(0, 4, 2)).ok()) continue;  // a codec that this program cannot have
    pair.run(strategy);
    for (int step = 0; step < 2; ++step) ASSERT_TRUE(pair.step(rng)) << option << ": " << pair.message;
  }
}

}  // namespace gradtune::exec
