// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/policies/fusion_model.h"

#include <algorithm>
#include <cmath>

namespace gradtune::policies::testing {

double FusionModel::step_ms(const core::GradientTable& table, const core::Strategy& strategy) const {
  constexpr double kLatencyUs = 150, kInterUsPerKb = 0.8, kGpus = 8;
  double delay_us = 0, end_us = 0;
  for (const core::Bucket& bucket : strategy.buckets) {
    const auto elements = static_cast<double>(core::numel(bucket));
    const double scale = std::max(1.0, elements / 8 / (1 << 20));
    const double intra_kb = std::floor(2 * (kGpus - 1) / kGpus * 4 * elements / 2 / 1000);
    const double inter_kb = std::floor(2.0 * (machines - 1) / machines * 4 * elements * density / 1000);
    const double transfer_us = 2 * kLatencyUs + intra_us_per_kb * intra_kb + kInterUsPerKb * inter_kb;
    const double ready_us = table.tensors[static_cast<size_t>(bucket.slices.back().tensor)].ready_us;
    delay_us += (encode_us - decode_us) * scale;
    end_us = std::max(end_us, ready_us + delay_us) + encode_us * scale + transfer_us;
  }
  return end_us / 1000;
}

}  // namespace gradtune::policies::testing
