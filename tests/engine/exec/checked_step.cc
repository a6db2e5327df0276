// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/exec/checked_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace gradtune::exec {
namespace {

using core::DType;

double unit_roundoff(DType dtype) { return dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }

// The common promise of its compressors.
struct Promise {
  bool error_feedback = false;
  bool keeps_momentum = false;  // then the sums do not contain all that was given
  core::Fidelity fidelity = core::Fidelity::exact;
  double roundoff = 0x1p-24;  // of the sent values
};
Promise promise_of(const std::string& option) {
  Promise promise;
  const core::TraitsTable known = compress::known_traits();
  const core::Option parsed = core::parse_option(option, known).value();
  for (const core::CompressorSpec& codec : parsed.codecs) {
    const core::CompressorTraits* traits = core::traits_of(codec, known);
    promise.error_feedback = promise.error_feedback || traits->error_feedback;
    promise.keeps_momentum = promise.keeps_momentum || traits->replaces_momentum;
    promise.fidelity = std::max(promise.fidelity, traits->fidelity);
    if (codec.name == "bf16" || codec.name == "bf16packed")
      promise.roundoff = std::max(promise.roundoff, unit_roundoff(DType::bf16));
    if (codec.name == "fp16") promise.roundoff = std::max(promise.roundoff, unit_roundoff(DType::f16));
  }
  return promise;
}

struct Ledger {
  std::string option;
  std::vector<DType> dtypes;
  std::vector<Values> gradients, before, after;
  Values average;

  double size() const { return static_cast<double>(gradients.size()); }
  static double sum(const std::vector<Values>& ranks, size_t i) {
    double total = 0;
    for (const Values& values : ranks) total += static_cast<double>(values[i]);
    return total;
  }

  // By dtype, since 16-bit gradients are rounded once more when the average is stored.
  void check_sums() const {
    std::array<double, 3> error{}, total{}, stored{};
    for (size_t i = 0; i < average.size(); ++i) {
      const auto d = static_cast<size_t>(dtypes[i]);
      const double given = sum(gradients, i) + sum(before, i);
      const double found = size() * static_cast<double>(average[i]) + sum(after, i);
      error[d] += (found - given) * (found - given);
      total[d] += given * given;
      stored[d] += size() * static_cast<double>(average[i]) * size() * static_cast<double>(average[i]);
    }
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const auto d = static_cast<size_t>(dtype);
      const double rounding = dtype == DType::f32 ? 0 : unit_roundoff(dtype) * std::sqrt(stored[d]);
      EXPECT_LE(std::sqrt(error[d]), 1e-6 * std::sqrt(total[d]) + rounding) << option << ", " << core::to_string(dtype);
    }
  }

  void check_average(double wire_roundoff) const {
    int wrong = 0;
    for (size_t i = 0; i < average.size(); ++i) {
      double magnitude = 0;
      for (const Values& values : gradients) magnitude += std::abs(static_cast<double>(values[i])) / size();
      const double roundoff = std::max(wire_roundoff, unit_roundoff(dtypes[i]));
      const double allowed = (size() + 2) * roundoff * magnitude + 0x1p-24;  // the smallest float16 is 2^-24
      if (!(std::abs(static_cast<double>(average[i]) - sum(gradients, i) / size()) <= allowed)) ++wrong;
    }
    EXPECT_EQ(wrong, 0) << option;
  }

  void check() const {
    const Promise promise = promise_of(option);
    if (promise.keeps_momentum) return;  // only checks that all ranks have the same bits
    if (promise.error_feedback) return check_sums();
    EXPECT_EQ(before, after) << option;
    if (promise.fidelity < core::Fidelity::lossy) check_average(promise.roundoff);
  }
};

}  // namespace

void checked_step(Fleet& fleet, const core::GradientTable& table, const std::string& option, core::Rng& rng) {
  Ledger ledger{.option = option,
                .dtypes = {},
                .gradients = random_gradients(table, fleet.size(), rng),
                .before = fleet.residuals(),
                .after = {},
                .average = {}};
  for (const core::TensorInfo& tensor : table.tensors) {
    ledger.dtypes.insert(ledger.dtypes.end(), static_cast<size_t>(tensor.numel), tensor.dtype);
  }
  for (int r = 0; r < fleet.size(); ++r) rng.shuffle(fleet.rank(r).ready_order);
  for (const core::Status& status : fleet.step(ledger.gradients)) ASSERT_TRUE(status.ok()) << status.error().message;
  ledger.after = fleet.residuals();
  ledger.average = fleet.rank(0).average();
  for (int r = 1; r < fleet.size(); ++r) EXPECT_EQ(fleet.rank(r).average(), ledger.average) << option;
  ledger.check();
}

}  // namespace gradtune::exec
