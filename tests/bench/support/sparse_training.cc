// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/sparse_training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "hooks/session.h"
#include "hooks/trained_by.h"
#include "tests/bench/support/sparse_models.h"
#include "tests/hooks/jobs.h"
#include "tests/temp_folder.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::test {
namespace {

constexpr int64_t kSteps = 4;

std::vector<float> losses_of(const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                             const std::string& name, const SparseDevice& on, const std::string& journal) {
  torch::manual_seed(1);
  const auto model = bench::make_sparse_model(name, /*has_sparse_gradients=*/true, on.device);
  torch::optim::SGD sgd(model->parameters(), 0.5);
  const MakeTrained make = [&, inner = trained_by({&sgd}, *model)](const Settings& settings) {
    Trained trained = inner(settings);
    trained.make_kernels = on.make_kernels;
    return trained;
  };
  Session session(make, group, quiet({.fidelity = "exact", .tuning_budget = 20, .timeout = 60, .journal = journal}));
  std::vector<float> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    session.zero_grad();
    const torch::Tensor loss = model->loss(step, rank.rank);
    loss.backward();
    session.step(nullptr);
    losses.push_back(loss.item<float>());
  }
  return losses;
}

// A command "bible" that prints numbers, as that package may be missing. Returns a PATH that finds it first.
std::string path_with_text(const TempFolder& folder) {
  const std::string command = folder.path("bible");
  std::ofstream(command) << "#!/bin/sh\nseq 1 5000\n";
  std::filesystem::permissions(command, std::filesystem::perms::owner_all);
  const char* const path = std::getenv("PATH");
  return folder.path() + ":" + (path == nullptr ? "" : path);
}

void expect_rows_alone(const std::string& journal) {
  const tuner::JournalFile file = tuner::read_journal(journal).value();
  int64_t sent = 0, all = 0;
  for (const policies::TimedOp& op : file.timings.at(0).ops) {
    if (op.step == 1) sent += op.bytes;  // the gather of rows by the baseline
  }
  for (const core::TensorInfo& tensor : file.job.table.tensors) all += 4 * tensor.numel;
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, all / 2) << "tables are sent as rows";
}

}  // namespace

void expect_losses_of_the_cpu(const std::string& model, const std::function<std::vector<SparseDevice>()>& devices,
                              double share) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl");
  const auto body = [&](const Rank& rank) {
    const std::vector<SparseDevice> others = devices();
    const auto group = make_group();
    const std::vector<float> on_cpu = losses_of(rank, group, model, {torch::kCPU}, folder.path("cpu.jsonl"));
    EXPECT_NE(on_cpu.front(), on_cpu.back());
    for (const SparseDevice& other : others) {
      const std::vector<float> losses = losses_of(rank, group, model, other, journal);
      for (size_t step = 0; step < on_cpu.size(); ++step) {
        EXPECT_NEAR(on_cpu[step], losses[step], share * std::abs(on_cpu[step])) << "step " << step;
      }
    }
  };
  run_ranks(2, body, {.environment = {{"PATH", path_with_text(folder)}}});
  if (!is_rank()) expect_rows_alone(journal);
}

}  // namespace gradtune::test
