// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/recorded_rank.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "engine/core/rng.h"
#include "engine/exec/codec_uses.h"
#include "tuner/files/strategy_file.h"
#include "tuner/timed_ops.h"

namespace gradtune::bench {
namespace {

constexpr int64_t kTimeoutMs = 60'000;
constexpr int kMostTimed = 3;  // steps of a block, as a job's pilot does it

void sleep_until(int64_t moment_ns, const core::Clock& clock) {
  constexpr int64_t kNotWorthIt = 20'000;
  if (moment_ns - clock.now_ns() < kNotWorthIt) return;
  const std::timespec moment{moment_ns / 1'000'000'000, moment_ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, nullptr) != 0) {
  }
}

}  // namespace

RecordedRank::RecordedRank(const c10::intrusive_ptr<c10d::ProcessGroup>& group, RecordedCompute compute,
                           int host_threads)
    : compute_(std::move(compute)),
      gradients_(4 * compute_.table.numel()),
      arena_(4 * compute_.table.numel()),
      ready_us_(compute_.table.tensors.size()),
      peers_(group, {}, kTimeoutMs, clock_, core::Status(), /*alarm_before=*/nullptr, /*interrupted=*/{}, Carrier(),
             /*say=*/{}),
      executor_(peers_.groups(), clock_, {.host_threads = host_threads, .timeout_ms = kTimeoutMs},
                [this](bool finite) {
                  word_ = {finite ? 0.0 : 1.0};
                  return std::span<double>(word_);
                }),
      host_threads_(host_threads) {
  prctl(PR_SET_TIMERSLACK, 1);  // of this thread, ns
  int64_t begin = 0;
  for (const core::TensorInfo& tensor : compute_.table.tensors) {
    begin_.push_back(begin);
    begin += tensor.numel;
    order_.push_back(static_cast<int32_t>(order_.size()));
  }
  std::ranges::stable_sort(order_, {}, [&](int32_t t) { return info(t).ready_us; });
  core::Rng rng(static_cast<uint64_t>(peers_.rank()));
  auto* values = reinterpret_cast<float*>(gradients_.data());
  for (int64_t i = 0; i < begin; ++i) values[i] = static_cast<float>(rng.normal());
  executor_.set_gradients(compute_.table, {{arena_.data(), begin}});
}

RecordedRank::~RecordedRank() {
  executor_.stop();
  peers_.close(/*failed=*/false);
}

Block RecordedRank::lead(const core::Strategy& strategy, int steps) {
  const std::string text =
      tuner::to_json(tuner::strategy_file(compute_.table, peers_.size(), core::Fidelity::lossy, "recorded", strategy));
  peers_.broadcast_text(std::to_string(steps) + " " + text);
  return run(text, steps);
}

void RecordedRank::dismiss() { peers_.broadcast_text("0"); }

void RecordedRank::follow() {
  for (;;) {
    const std::string order = peers_.broadcast_text("");
    const int steps = std::stoi(order);
    if (steps == 0) return;
    run(order.substr(order.find(' ') + 1), steps);
  }
}

Block RecordedRank::run(const std::string& strategy_text, int steps) {
  put_in_force(strategy_text);
  Block block;
  for (int s = 0; s < steps; ++s) {
    const int64_t begin_ns = clock_.now_ns();
    step();
    const double ms = static_cast<double>(clock_.now_ns() - begin_ns) * 1e-6;
    const exec::StepTimes& times = executor_.times();
    block.step_ms.push_back(ms);
    block.compute_ms.push_back(ms - times.encode_ms - times.decode_ms - times.wait_ms);
    if (s == 0 || s > kMostTimed) continue;
    block.timed.push_back({executor_.strategy(), tuner::timed_ops(executor_.program(), executor_.op_times())});
  }
  return block;
}

void RecordedRank::put_in_force(const std::string& strategy_text) {
  const auto file = tuner::parse_strategy(strategy_text, compress::known_traits());
  executor_.prepare(slot_ + 1, file.value().strategy).value();
  executor_.run(slot_ + 1);
  if (slot_ >= 0) executor_.drop(slot_);
  ++slot_;
}

void RecordedRank::step() {
  int64_t moment_ns = clock_.now_ns() + static_cast<int64_t>(compute_.rest_ms * 1e6);
  sleep_until(moment_ns, clock_);
  executor_.begin_step().value();
  int64_t first_ns = 0, hooks_ns = 0;
  double before_us = 0;
  ++steps_;
  for (const int32_t t : order_) {
    const int64_t begin = 4 * begin_[static_cast<size_t>(t)];
    std::memcpy(arena_.data() + begin, gradients_.data() + begin, static_cast<size_t>(4 * info(t).numel));
    moment_ns += static_cast<int64_t>((info(t).ready_us - before_us) * 1e3);
    before_us = info(t).ready_us;
    sleep_until(moment_ns, clock_);
    const int64_t ready_ns = clock_.now_ns();
    if (first_ns == 0) first_ns = ready_ns;
    const double seen_us = static_cast<double>(ready_ns - first_ns - hooks_ns) * 1e-3;
    double& mean_us = ready_us_[static_cast<size_t>(t)];
    mean_us += (seen_us - mean_us) / static_cast<double>(steps_);
    executor_.tensor_ready(t);
    const int64_t spent_ns = clock_.now_ns() - ready_ns;
    hooks_ns += spent_ns;
    moment_ns += spent_ns;
  }
  executor_.finish_backward().value();
  executor_.conclude(/*finite=*/true).value();
}

core::GradientTable RecordedRank::seen(std::span<const core::CompressorSpec> codecs) {
  core::GradientTable table = compute_.table;
  for (size_t t = 0; t < table.tensors.size(); ++t) table.tensors[t].ready_us = ready_us_[t];
  table.uses = exec::codec_uses(table, {{gradients_.data(), table.numel()}}, codecs);
  return table;
}

}  // namespace gradtune::bench
