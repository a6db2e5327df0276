// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The cost model of Espresso's released simulator for one option (its option 2, compressed between machines). Its
// exact optima and the results of other searches are known (policies/README.md, "Published cases that tests hold").
// The time runs from the first gradient to the last communication; encoding and decoding occupy the link.
#pragma once

#include <string_view>

#include "engine/core/gradient_table.h"
#include "engine/core/strategy.h"

namespace gradtune::policies::testing {

struct FusionModel {
  std::string_view trace;
  double encode_us, decode_us;  // h_2 and g_2, for up to 8 Mi elements; proportional beyond
  double density;               // rho
  double intra_us_per_kb;       // beta1: 0.4 PCIe, 0.02 NVLink
  int machines;

  // Only the buckets count; the model's option is assumed for all.
  double step_ms(const core::GradientTable& table, const core::Strategy& strategy) const;
};

// The five cases of both tables.
constexpr FusionModel vgg16_random_k(int machines) { return {"vgg16", 88, 34, 0.02, 0.4, machines}; }
constexpr FusionModel resnet50_dgc(int machines) { return {"resnet50", 390, 34, 0.02, 0.4, machines}; }
constexpr FusionModel resnet50_random_k(int machines) { return {"resnet50", 88, 34, 0.02, 0.02, machines}; }
constexpr FusionModel bert_random_k(int machines) { return {"bert_base", 88, 34, 0.02, 0.02, machines}; }
constexpr FusionModel gpt2_efsign(int machines) { return {"gpt2", 270, 140, 1.0 / 32, 0.02, machines}; }

}  // namespace gradtune::policies::testing
