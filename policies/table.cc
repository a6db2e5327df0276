// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "engine/core/unknown_name.h"
#include "policies/policy.h"

namespace gradtune::policies {

// One factory per row, in the source file of that name.
std::unique_ptr<Policy> make_auto(const PolicyOptions& options);
std::unique_ptr<Policy> make_exhaustive(const PolicyOptions& options);
std::unique_ptr<Policy> make_fixed(const PolicyOptions& options);
std::unique_ptr<Policy> make_mergecomp(const PolicyOptions& options);

std::span<const PolicyRow> policy_table() {
  static constexpr PolicyRow kTable[] = {
      {"mergecomp", "partitions and compressors from measured step times, as few buckets as pay", make_mergecomp},
      {"auto", "the joint optimum of partition and options under a model of the job, corrected by measurements",
       make_auto},
      {"fixed", "the strategies given, nothing else", make_fixed},
      {"exhaustive", "every option on every partition; for small models and for tests", make_exhaustive},
  };
  return kTable;
}

core::Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyOptions& options) {
  std::vector<std::string_view> known;
  for (const PolicyRow& row : policy_table()) {
    if (row.name == name) return row.make(options);
    known.push_back(row.name);
  }
  return core::Error{core::Error::Code::invalid, core::unknown_name("policy", name, known)};
}

}  // namespace gradtune::policies
