// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/step_picture.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "engine/compress/compressor.h"
#include "policies/cost/timeline.h"

namespace gradtune::tuner {
namespace {

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
      bars.push_back({.lane = Lane::computation,
                      .what = policies::to_string(span.phase),
                      .begin_us = span.begin_us,
                      .end_us = span.end_us});
    } else {
      bars.push_back(bar_of(strategy, {span.bucket, span.step, span.begin_us, span.end_us}));
    }
  }
  return {};
}

}  // namespace

StepPicture picture_of(const JournalFile& journal, int32_t slot, const core::GradientTable& table,
                       const std::optional<MeasuredStep>& measured) {
  const core::Strategy& strategy = journal.strategies.at(slot).strategy;
  StepPicture picture{.slot = slot};
  if (const std::string why = why_not_predicted(journal, table); !why.empty()) {
    picture.lacks.push_back(why);
  } else if (const core::Status status = predict(journal, strategy, table, picture.predicted); !status) {
    picture.lacks.push_back("No step can be predicted: " + status.error().message + ".");
  }
  if (!measured) {
    picture.lacks.push_back("The journal has no times of the operations of this strategy in a step that counts.");
    return picture;
  }
  std::ranges::copy_if(measured->bars, std::back_inserter(picture.measured),
                       [](const Bar& bar) { return bar.bucket >= 0; });
  const double shift_us = first_begin(picture.predicted) - first_begin(picture.measured);
  for (Bar& bar : picture.measured) {
    bar.begin_us += shift_us;
    bar.end_us += shift_us;
  }
  return picture;
}

}  // namespace gradtune::tuner
