// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The programs of the decision tree that a job may run: named rules restrict the tree, and each rule can be switched
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
  int64_t numel_16bit = 0;                        // of these, elements in 16 bits
  int64_t memory_bytes = INT64_MAX;               // for residuals and payloads
  bool plain_inside = false;                      // for plans in milliseconds: see rule "inside"
};

// The table of rules (admission.cc).
struct AdmissionRule {
  std::string_view name;
  std::string_view summary;
  bool (*admits)(const core::Option& option, const TreeJob& job);
};
std::span<const AdmissionRule> admission_rules();

// True if all rules except those in `off` admit the option. An option that could not even be compiled (it uses
// levels that do not exist, or adds up payloads that are not summable) is admitted only if its rule is off.
bool admits(const core::Option& option, const TreeJob& job, const std::set<std::string_view>& off = {});

// The decision tree and its extension. Each program is combined with each codec or, if it has payloads that stay in
// a node and payloads that leave it, with each pair of codecs; plain programs occur once. Options that are not
// admitted are left out.
std::vector<core::Option> tree_options(const TreeJob& job, const std::set<std::string_view>& off = {});

// The options for plans of a running job, which must take milliseconds: from its knowledge, with rule "inside".
std::vector<core::Option> admitted_options(const Knowledge& knowledge);

}  // namespace gradtune::policies
