// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Jobs to test policies on: the reference job, small odd ones, and the published traces of real models. It also has
// the compressors that policies know in tests (the real ones live above policies/).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "policies/policy.h"

namespace gradtune::policies::testing {

// none, fp16, bf16, topk, efsignsgd and randk, whose payloads can be added up, with the payload sizes of the real
// ones.
core::TraitsTable known_traits();

// The default lists: none; none and bf16; none, bf16 and topk:0.01.
std::vector<core::CompressorSpec> default_codecs(core::Fidelity fidelity);

core::GradientTable make_table(const std::vector<core::TensorInfo>& tensors);
core::TensorInfo tensor(std::string name, int64_t numel, double ready_us = 0, core::DType dtype = core::DType::f32);

// The convolutional network of the reference job, with 8.55 M parameters, 75 % of them in one linear layer. Ready
// times were measured on one core with a batch of 64.
core::GradientTable reference_table();

Knowledge knowledge_of(core::GradientTable table, int world_size, core::Fidelity fidelity);

// The published trace tests/data/traces/NAME.json.
core::GradientTable read_trace(std::string_view name);

}  // namespace gradtune::policies::testing
