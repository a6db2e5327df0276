// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/measured_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "engine/core/median.h"

namespace gradtune::tuner {
namespace {

constexpr std::array kLanes = {Lane::computation, Lane::encode, Lane::host_encode, Lane::copies,
                               Lane::link,        Lane::decode, Lane::host_decode};

using StepsOfSlot = std::map<int64_t, const core::StepReport*>;

// The steps of the slot that count, by number.
StepsOfSlot steps_of(const JournalFile& journal, int32_t slot) {
  StepsOfSlot steps;
  for (const core::StepReport& report : journal.reports) {
    const bool counts = report.finite && !report.excluded && report.step_ms > 0;
    if (report.slot == slot && report.step >= 0 && counts) steps.emplace(report.step, &report);
  }
  return steps;
}

double median_ms(const StepsOfSlot& steps) {
  std::vector<double> ms;
  for (const auto& [step, report] : steps) ms.push_back(report->step_ms);
  return core::median(std::move(ms));
}

// For more than two ranks this is the least possible time if rank 0 is not the slowest one.
double computed_us(const core::StepReport& report) {
  return 1e3 * (report.slowest_rank == 0 ? report.compute_ms_max : report.compute_ms_min);
}

// The end of the last operation for which backward waits.
double end_of_exchange_us(const core::Strategy& strategy, const std::vector<Bar>& operations) {
  double end_us = 0, last_us = 0;
  for (const Bar& bar : operations) {
    const bool is_due = strategy.buckets[static_cast<size_t>(bar.bucket)].due == core::Due::backward;
    if (is_due) end_us = std::max(end_us, bar.end_us);
    last_us = std::max(last_us, bar.end_us);
  }
  return end_us > 0 ? end_us : last_us;
}

// So much computation, as early as the operations in the same thread leave time for it.
std::vector<Bar> computation(std::vector<Bar> operations, double length_us, double computed_us) {
  constexpr double kLeast_us = 0.1;  // journals round to that
  std::erase_if(operations, [](const Bar& bar) { return bar.lane != Lane::encode && bar.lane != Lane::decode; });
  std::ranges::sort(operations, {}, &Bar::begin_us);
  std::vector<Bar> bars;
  double at_us = 0;
  const auto compute_until = [&](double until_us) {
    const double end_us = std::min({until_us, length_us, at_us + computed_us});
    if (end_us - at_us < kLeast_us) return;
    bars.push_back({.lane = Lane::computation, .what = "computation", .begin_us = at_us, .end_us = end_us});
    computed_us -= end_us - at_us;
  };
  for (const Bar& bar : operations) {
    compute_until(bar.begin_us);
    at_us = std::max(at_us, bar.end_us);
  }
  compute_until(length_us);
  return bars;
}

MeasuredStep drawn(const core::Strategy& strategy, const Timing& timing, const core::StepReport& report) {
  MeasuredStep step{.step = report.step, .slot = timing.slot, .length_us = 1e3 * report.step_ms};
  std::vector<Bar> operations;
  for (const policies::TimedOp& op : timing.ops) operations.push_back(bar_of(strategy, op));
  const double end_us = end_of_exchange_us(strategy, operations);
  step.length_us = std::max(step.length_us, end_us);
  for (Bar& bar : operations) {
    bar.begin_us += step.length_us - end_us;
    bar.end_us += step.length_us - end_us;
  }
  step.bars = computation(operations, step.length_us, computed_us(report));
  std::ranges::move(operations, std::back_inserter(step.bars));
  return step;
}

std::string name_of(const core::Strategy& strategy, const policies::TimedOp& op) {
  switch (op.step) {
    case policies::kScaleStep: return "scale";
    case policies::kCastStep: return "cast";
    case policies::kToHostStep: return "copy to the host";
    case policies::kToDeviceStep: return "copy to the device";
    default: break;
  }
  const core::Option& option = strategy.buckets[static_cast<size_t>(op.bucket)].option;
  return std::string(core::to_string(option.steps[static_cast<size_t>(op.step)].kind));
}

Lane lane_of(const core::Strategy& strategy, const policies::TimedOp& op) {
  if (op.step == policies::kToHostStep || op.step == policies::kToDeviceStep) return Lane::copies;
  if (op.step < 0) return Lane::encode;
  const core::Option& option = strategy.buckets[static_cast<size_t>(op.bucket)].option;
  const core::Step& step = option.steps[static_cast<size_t>(op.step)];
  if (core::is_collective(step.kind)) return Lane::link;
  const bool is_on_host = step.place == core::Place::host;
  if (step.kind == core::Step::Kind::encode) return is_on_host ? Lane::host_encode : Lane::encode;
  return is_on_host ? Lane::host_decode : Lane::decode;
}

}  // namespace

std::string_view to_string(Lane lane) {
  switch (lane) {
    case Lane::computation: return "computation";
    case Lane::encode: return "encode";
    case Lane::host_encode: return "encode on host cores";
    case Lane::copies: return "copies between the device and the host";
    case Lane::link: return "link";
    case Lane::decode: return "decode";
    case Lane::host_decode: return "decode on host cores";
  }
  return "";
}

Bar bar_of(const core::Strategy& strategy, const policies::TimedOp& op) {
  return {.lane = lane_of(strategy, op),
          .bucket = op.bucket,
          .what = name_of(strategy, op),
          .begin_us = op.begin_us,
          .end_us = op.end_us};
}

std::vector<LaneLines> in_lines(const std::vector<Bar>& bars, size_t most) {
  std::vector<LaneLines> lanes;
  for (const Lane lane : kLanes) {
    std::vector<Bar> of_lane;
    std::ranges::copy_if(bars, std::back_inserter(of_lane), [&](const Bar& bar) { return bar.lane == lane; });
    if (of_lane.empty()) continue;
    std::ranges::stable_sort(of_lane, {}, &Bar::begin_us);
    std::vector<std::vector<Bar>>& lines = lanes.emplace_back(LaneLines{lane, {}}).lines;
    std::vector<double> ends_us;
    for (Bar& bar : of_lane) {
      size_t line = 0;
      while (line < ends_us.size() && ends_us[line] > bar.begin_us + 1e-6) ++line;
      if (line == ends_us.size() && line == most) {
        line = static_cast<size_t>(std::ranges::min_element(ends_us) - ends_us.begin());
      }
      if (line == ends_us.size()) {
        ends_us.push_back(0);
        lines.emplace_back();
      }
      ends_us[line] = std::max(ends_us[line], bar.end_us);
      lines[line].push_back(std::move(bar));
    }
  }
  return lanes;
}

std::optional<MeasuredStep> measured_step(const JournalFile& journal, int32_t slot, std::optional<double> usual_ms) {
  const StepsOfSlot steps = steps_of(journal, slot);
  if (steps.empty()) return {};
  if (!usual_ms) usual_ms = median_ms(steps);
  const core::StepReport* nearest = nullptr;
  const Timing* timing = nullptr;
  for (size_t t = 0; t < journal.timings.size(); ++t) {
    if (journal.timings[t].slot != slot || journal.timings[t].ops.empty()) continue;
    const auto step = steps.find(journal.timed_steps[t]);
    if (step == steps.end()) continue;
    const auto off_ms = [&](const core::StepReport& report) { return std::abs(report.step_ms - *usual_ms); };
    if (nearest != nullptr && off_ms(*step->second) > off_ms(*nearest)) continue;
    nearest = step->second;
    timing = &journal.timings[t];
  }
  if (timing == nullptr) return {};
  return drawn(journal.strategies.at(slot).strategy, *timing, *nearest);
}

}  // namespace gradtune::tuner
