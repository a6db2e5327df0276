// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A runner that keeps the strategies in its slots and runs nothing, for tests. `may_prepare` may refuse a strategy.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "engine/exec/strategy_runner.h"

namespace gradtune::tuner {

class KeptStrategies : public exec::StrategyRunner {
 public:
  using MayPrepare = std::function<core::Status(const core::Strategy&)>;
  MayPrepare may_prepare = [](const core::Strategy&) { return core::Status(); };

  core::Status prepare(int32_t slot, const core::Strategy& strategy) override {
    const core::Status status = may_prepare(strategy);
    if (status) strategies_[slot] = strategy;
    return status;
  }
  void drop(int32_t slot) override { strategies_.erase(slot); }
  void run(int32_t slot) override { slot_ = slot; }
  void commit(int32_t slot) override { slot_ = slot; }
  const core::Strategy& strategy() const override { return strategies_.at(slot_); }
  core::Result<bool> conclude(bool finite) override { return finite; }
  core::BucketLoss loss(int32_t /*bucket*/) const override { return {}; }

 private:
  std::map<int32_t, core::Strategy> strategies_;
  int32_t slot_ = 0;
};

}  // namespace gradtune::tuner
