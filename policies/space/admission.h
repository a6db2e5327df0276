// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Which programs of the decision tree a job may run: the tree narrowed by named rules, each of which can be switched
// off.
#pragma once

#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "policies/cost/knowledge.h"
#include "policies/cost/op_sizes.h"

namespace gradtune::policies {

struct TreeJob {
  core::Ranks ranks = {};
  int host_threads = 0;
  core::Fidelity fidelity = core::Fidelity::half;
  std::vector<core::CompressorSpec> codecs = {};  // the allow-list
  core::TraitsTable traits = {};                  // of all known compressors
  int64_t numel = 0;                              // of the gradient
  int64_t numel_16bit = 0;                        // of them, those in 16 bits
  int64_t memory_bytes = INT64_MAX;               // for residuals and payloads
  bool plain_inside = false;                      // for plans in milliseconds: see rule "inside"
};

// The table of this family (admission.cc).
struct AdmissionRule {
  std::string_view name;
  std::string_view summary;
  bool (*admits)(const core::Option& option, const TreeJob& job);
};
std::span<const AdmissionRule> admission_rules();

// Whether all rules but those switched off admit the option. What could not even be compiled (levels where there are
// none, payloads added up that cannot be) is only admitted with its rule off.
bool admits(const core::Option& option, const TreeJob& job, const std::set<std::string_view>& off = {});

// The decision tree and its extension, each program with each of the codecs and, where payloads stay in a node and
// payloads leave it, with each pair of codecs; plain programs once. What is not admitted is left out.
std::vector<core::Option> tree_options(const TreeJob& job, const std::set<std::string_view>& off = {});

// Those that a running job plans with, which takes milliseconds: of what it knows of itself, with rule "inside".
std::vector<core::Option> admitted_options(const Knowledge& knowledge);

}  // namespace gradtune::policies
