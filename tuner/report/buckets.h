// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The buckets of a strategy, one row each, for tables and pictures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/strategy.h"

namespace gradtune::tuner {

struct BucketRow {
  int64_t elements = 0, bytes = 0;  // bytes of its gradients, before compression
  std::string first, last;          // tensors
  size_t slices = 0;
  double ready_us = 0;     // its last gradient, since the very first gradient
  std::string option;      // the program, as written in strategy files
  int kind = 0;            // number of its option among the distinct ones of the strategy, in order of appearance
  bool uses_host = false;  // for any encode or decode
  core::Due due = core::Due::backward;
  bool is_lossy = false;      // its compressors lose more than 16-bit rounding does
  std::vector<int> places{};  // positions of its collectives among all, from 0

  bool operator==(const BucketRow&) const = default;
};

// The strategy must pass core::validate for the table.
std::vector<BucketRow> rows_of(const core::Strategy& strategy, const core::GradientTable& table,
                               core::TraitsTable known);

// "9.weight", or "9.weight to 0.bias".
std::string tensors_of(const core::Bucket& bucket, const core::GradientTable& table);

}  // namespace gradtune::tuner
