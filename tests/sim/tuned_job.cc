// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/tuned_job.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "policies/space/baseline.h"

namespace gradtune::sim {
namespace {

// Each job has a journal of its own, because some tests have several jobs at once.
std::string journal_name() {
  static int jobs = 0;
  return "journal" + std::to_string(++jobs) + ".jsonl";
}

}  // namespace

TunedJob::TunedJob(JobOptions options, const tuner::Job& tuned)
    : path_(folder_.path(journal_name())),
      driver_({.job = tuned, .network = "simulated", .journal = path_, .quiet = true}, clock_, audience_) {
  EXPECT_TRUE(driver_.claim_journal().ok());
  driver_.start(tuned.table, {});
  options.rank.start = policies::baselines(tuned.table, tuned.fidelity);
  options.rank.fidelity = tuned.fidelity;
  options.leader = {.driver = &driver_};
  job_ = std::make_unique<Job>(std::move(options));
  job_->run();
  driver_.finish();
  EXPECT_TRUE(audience_.warnings.empty());
  auto journal = tuner::read_journal(path_);
  EXPECT_TRUE(journal.ok()) << (journal ? "" : journal.error().message);
  if (journal) journal_ = std::move(journal).value();
}

std::vector<tuner::Decision> TunedJob::decided(tuner::Decision::What what, int64_t since) const {
  std::vector<tuner::Decision> found;
  for (const tuner::Decision& decision : journal_.decisions) {
    if (decision.what == what && decision.step >= since) found.push_back(decision);
  }
  return found;
}

}  // namespace gradtune::sim
