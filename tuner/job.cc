// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/job.h"

#include "engine/compress/compressor.h"
#include "policies/space/baseline.h"

namespace gradtune::tuner {

policies::Knowledge knowledge_of(const Job& job) {
  return {.table = job.table,
          .ranks = job.ranks,
          .fidelity = job.fidelity,
          .codecs = job.codecs,
          .traits = compress::known_traits(),
          .host_threads = job.host_threads,
          .memory_bytes = job.memory_bytes,
          .machine = job.machine,
          .forward_overlap = job.forward_overlap};
}

core::Result<std::unique_ptr<Tuner>> make_tuner(const Job& job) {
  policies::PolicyOptions options{.seed = job.tuning.seed};
  if (job.imported) options.fixed = {*job.imported};
  if (auto policy = policies::make_policy(job.policy, options); !policy) return policy.error();
  const auto make = [name = job.policy, options] { return policies::make_policy(name, options).value(); };
  return std::make_unique<Tuner>(job.tuning, make, knowledge_of(job), policies::baselines(job.table, job.fidelity),
                                 job.imported);
}

}  // namespace gradtune::tuner
