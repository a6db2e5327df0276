// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/step_picture.h"

#include <algorithm>

#include "engine/compress/compressor.h"
#include "policies/cost/timeline.h"

namespace gradtune::tuner {
namespace {

std::string name_of(const core::Strategy& strategy, int32_t bucket, int32_t step) {
  switch (step) {
    case policies::kScaleStep: return "scale";
    case policies::kCastStep: return "cast";
    case policies::kToHostStep: return "copy to the host";
    case policies::kToDeviceStep: return "copy to the device";
    default: break;
  }
  const core::Option& option = strategy.buckets[static_cast<size_t>(bucket)].option;
  return std::string(core::to_string(option.steps[static_cast<size_t>(step)].kind));
}

Row row_of(const core::Strategy& strategy, int32_t bucket, int32_t step) {
  if (step == policies::kToHostStep || step == policies::kToDeviceStep) return Row::copies;
  if (step < 0) return Row::device;
  const core::Step& at = strategy.buckets[static_cast<size_t>(bucket)].option.steps[static_cast<size_t>(step)];
  if (core::is_collective(at.kind)) return Row::network;
  return at.place == core::Place::host ? Row::host : Row::device;
}

double length_us(const Timing& timing) {
  double begin = timing.ops.front().begin_us, end = 0;
  for (const policies::TimedOp& op : timing.ops) {
    begin = std::min(begin, op.begin_us);
    end = std::max(end, op.end_us);
  }
  return end - begin;
}

// The middle one, by length, of the last few steps that were timed under the strategy.
const Timing* usual_timing(const JournalFile& journal, int32_t slot) {
  constexpr size_t kMost = 3;
  std::vector<const Timing*> last;
  for (auto timing = journal.timings.rbegin(); timing != journal.timings.rend() && last.size() < kMost; ++timing) {
    if (timing->slot == slot && !timing->ops.empty()) last.push_back(&*timing);
  }
  if (last.empty()) return nullptr;
  std::ranges::sort(last, {}, [](const Timing* timing) { return length_us(*timing); });
  return last[last.size() / 2];
}

double first_begin(const std::vector<Bar>& bars) {
  double first = -1;
  for (const Bar& bar : bars) {
    if (bar.bucket >= 0 && (first < 0 || bar.begin_us < first)) first = bar.begin_us;
  }
  return std::max(first, 0.0);
}

std::string why_not_predicted(const JournalFile& journal, const core::GradientTable& table) {
  const bool has_times = std::ranges::any_of(table.tensors, [](const auto& tensor) { return tensor.ready_us > 0; });
  if (!has_times) {
    return "The journal ended before it was known when gradients are ready, so no step can be predicted. A trace of "
           "the same model has these times (--trace).";
  }
  if (journal.timings.empty()) return "The journal has no times of operations to fit a cost model to.";
  return "";
}

core::Status predict(const JournalFile& journal, const core::Strategy& strategy, const core::GradientTable& table,
                     std::vector<Bar>& bars) {
  const core::TraitsTable known = compress::known_traits();
  const policies::FittedCost fitted =
      policies::fit_cost(journal.runs(), table, journal.job.ranks, known, {}, journal.job.machine);
  auto timeline = policies::Timeline::make(table, strategy, fitted.table, known);
  if (!timeline) return timeline.error();
  std::vector<policies::Span> spans;
  timeline.value().run(spans);
  for (const policies::Span& span : spans) {
    if (span.bucket < 0) {
      bars.push_back({.row = Row::computation,
                      .what = policies::to_string(span.phase),
                      .begin_us = span.begin_us,
                      .end_us = span.end_us});
    } else {
      bars.push_back({.row = row_of(strategy, span.bucket, span.step),
                      .bucket = span.bucket,
                      .what = name_of(strategy, span.bucket, span.step),
                      .begin_us = span.begin_us,
                      .end_us = span.end_us});
    }
  }
  return {};
}

}  // namespace

StepPicture picture_of(const JournalFile& journal, int32_t slot, const core::GradientTable& table) {
  const core::Strategy& strategy = journal.strategies.at(slot).strategy;
  StepPicture picture{.slot = slot};
  if (const std::string why = why_not_predicted(journal, table); !why.empty()) {
    picture.lacks.push_back(why);
  } else if (const core::Status status = predict(journal, strategy, table, picture.predicted); !status) {
    picture.lacks.push_back("No step can be predicted: " + status.error().message + ".");
  }
  const Timing* timing = usual_timing(journal, slot);
  if (timing == nullptr) {
    picture.lacks.push_back("The journal has no times of the operations of this strategy.");
    return picture;
  }
  for (const policies::TimedOp& op : timing->ops) {
    picture.measured.push_back({.row = row_of(strategy, op.bucket, op.step),
                                .bucket = op.bucket,
                                .what = name_of(strategy, op.bucket, op.step),
                                .begin_us = op.begin_us,
                                .end_us = op.end_us});
  }
  const double shift_us = first_begin(picture.predicted) - first_begin(picture.measured);
  for (Bar& bar : picture.measured) {
    bar.begin_us += shift_us;
    bar.end_us += shift_us;
  }
  return picture;
}

}  // namespace gradtune::tuner
