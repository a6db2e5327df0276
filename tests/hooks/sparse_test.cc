// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests sparse gradients in and out: optimizers get the gradients that they would get without gradtune, averaged
// over ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "engine/compress/compressor.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/file_io.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 300, kWidth = 8;

// The layout in memory.
enum class Lies : uint8_t { by_rows, by_columns };

// A table, read at a few ids, and a layer behind it. With `penalty` the table's gradient is dense.
struct TableImpl : torch::nn::Module {
  explicit TableImpl(int64_t rows = kRows, Lies lies = Lies::by_rows) {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(rows, kWidth).sparse(true)));
    if (lies == Lies::by_columns) table->weight.set_data(table->weight.detach().t().contiguous().t());
    layer = register_module("layer", torch::nn::Linear(kWidth, 1));
  }
  torch::Tensor loss(const torch::Tensor& ids, bool penalty = false) {
    const torch::Tensor of_rows = layer->forward(table->forward(ids)).square().mean();
    return penalty ? of_rows + table->weight.square().mean() : of_rows;
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Table);

// A few ids, repeated within a rank and between ranks. Each rank can also make those of the others.
torch::Tensor ids_of(int rank, int64_t step) {
  torch::manual_seed(100 * step + rank);
  return torch::randint(0, step % 2 == 0 ? kRows : 20, {12});
}

// The average gradients of all ranks' passes, made by one process.
std::vector<torch::Tensor> averages(Table& model, int size, const std::function<torch::Tensor(int rank)>& loss) {
  std::vector<torch::Tensor> sums;
  for (int rank = 0; rank < size; ++rank) {
    model->zero_grad();
    loss(rank).backward();
    size_t at = 0;
    for (const torch::Tensor& parameter : model->parameters()) {
      const torch::Tensor own = (parameter.grad().is_sparse() ? parameter.grad().to_dense() : parameter.grad()) / size;
      rank == 0 ? sums.push_back(own.clone()) : void(sums[at] += own);
      ++at;
    }
  }
  return sums;
}

template <typename Optimizer>
void train_beside_one_process(const Rank& rank, Lies lies = Lies::by_rows) {
  auto group = make_group();
  torch::manual_seed(3);
  Table model(kRows, lies), alone;
  for (size_t p = 0; p < model->parameters().size(); ++p) {
    alone->parameters()[p].data().copy_(model->parameters()[p].data());
  }
  Optimizer own(model->parameters(), 0.1), other(alone->parameters(), 0.1);
  auto optimizer = wrap(own, *model, group, quiet({.fidelity = "exact"}));
  for (int64_t step = 0; step < 12; ++step) {
    optimizer.zero_grad();
    model->loss(ids_of(rank.rank, step)).backward();
    const auto expected = averages(alone, rank.size, [&](int r) { return alone->loss(ids_of(r, step)); });
    const torch::Tensor average = model->table->weight.grad();
    ASSERT_TRUE(average.is_sparse()) << step;
    ASSERT_TRUE(average.is_coalesced());
    std::vector<torch::Tensor> all;
    for (int r = 0; r < rank.size; ++r) all.push_back(ids_of(r, step));
    const torch::Tensor rows = std::get<0>(torch::_unique(torch::cat(all)));
    ASSERT_TRUE(torch::equal(average.indices()[0], rows)) << step;
    ASSERT_TRUE(torch::allclose(average.to_dense(), expected[0], 1e-5, 1e-7)) << step;
    optimizer.step();
    for (size_t p = 0; p < expected.size(); ++p) {
      alone->parameters()[p].mutable_grad() = p == 0 ? expected[p].to_sparse(1) : expected[p];
    }
    other.step();
    for (size_t p = 0; p < expected.size(); ++p) {
      ASSERT_TRUE(torch::allclose(model->parameters()[p], alone->parameters()[p], 1e-4, 1e-6)) << step;
    }
  }
}

void train_beside_one_process_by_sgd(const Rank& rank) { train_beside_one_process<torch::optim::SGD>(rank); }

TEST(Sparse, OptimizersFindTheCoalescedAverageOfAllRows) {
  run_ranks(2, [](const Rank& rank) {
    train_beside_one_process_by_sgd(rank);
    train_beside_one_process<torch::optim::Adagrad>(rank);
  });
}

TEST(Sparse, AnyNumberOfRanksFindsTheCoalescedAverageOfAllRows) {
  for (const int size : {1, 3, 4}) run_ranks(size, train_beside_one_process_by_sgd);
}

// A table that is the transpose of another layer's weight has this layout.
TEST(Sparse, ATableThatLiesColumnByColumnHasTheAverageOfAllRows) {
  for (const int size : {2, 3}) {
    run_ranks(
        size, +[](const Rank& rank) {
          train_beside_one_process<torch::optim::SGD>(rank, Lies::by_columns);
          train_beside_one_process<torch::optim::Adagrad>(rank, Lies::by_columns);
        });
  }
}

// A momentum buffer is sparse if its first gradient was, and then takes no dense gradient.
TEST(Sparse, MomentumThatBeganWithRowsFindsRowsAlsoWhereResidualsAreOwed) {
  const TempFolder folder;
  const std::string plain = folder.path("plain.json"), file = folder.path("strategy.json");
  run_ranks(2, [&](const Rank& rank) {
    auto group = make_group();
    Table model;
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const auto train = [&](std::optional<std::string> strategy) {
      auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "lossy", .strategy = strategy, .tuning_budget = 0}));
      for (int64_t step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        model->loss(ids_of(rank.rank, step)).backward();
        ASSERT_TRUE(model->table->weight.grad().is_sparse()) << step;
        optimizer.step();
      }
      optimizer.export_strategy(plain);
    };
    train({});
    if (rank.rank == 0) {
      const auto known = compress::known_traits();
      auto read = tuner::parse_strategy(tuner::read_file(plain, 1 << 20).value(), known).value();
      for (core::Bucket& bucket : read.strategy.buckets)
        bucket.option = core::parse_option("topk:0.05: encode@device all_gather decode@device", known).value();
      core::set_default_flow(read.strategy);
      ASSERT_TRUE(tuner::write_file_atomically(file, tuner::to_json(read)).ok());
    }
    group->barrier()->wait();
    train(file);
  });
}

// That order may differ from their positions.
TEST(Sparse, RepeatedRowsAreAddedInTheOrderOfTorch) {
  run_ranks(1, [](const Rank&) {
    auto group = make_group();
    torch::manual_seed(3);
    const auto table = torch::nn::EmbeddingOptions(kRows, kWidth).sparse(true);
    torch::nn::Embedding model(table), alone(table);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (const int64_t rows : {20, 200}) {
      const torch::Tensor ids = torch::randint(rows, {1000}), factors = torch::randn({1000, kWidth});
      for (torch::nn::Embedding each : {model, alone}) {
        each->zero_grad();
        (each->forward(ids) * factors).sum().backward();
      }
      ASSERT_TRUE(torch::equal(model->weight.grad().values(), alone->weight.grad().coalesce().values()));
    }
  });
}

TEST(Sparse, WhatRefusesSparseGradientsRefusesThem) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    Table model;
    torch::optim::Adam adam(model->parameters(), 0.1);
    auto optimizer = wrap(adam, *model, group, quiet({.fidelity = "exact"}));
    model->loss(ids_of(rank.rank, 0)).backward();
    EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("Adam does not support sparse gradients"));
  });
}

void expect_averages_where_steps_and_ranks_differ(Lies lies) {
  run_ranks(3, [lies](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(3);
    Table model(kRows, lies), alone;
    for (size_t p = 0; p < model->parameters().size(); ++p) {
      alone->parameters()[p].data().copy_(model->parameters()[p].data());
    }
    torch::optim::SGD sgd(model->parameters(), 0.0);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (int64_t step = 0; step < 12; ++step) {
      // 0: sparse on all; 1: dense on one; 2: dense on all; 3: none on one
      const int64_t kind = step % 4;
      const auto loss = [&](Table& of, int r) {
        const bool none = kind == 3 && r == 1;
        if (none) return of->layer->forward(torch::ones({1, kWidth})).sum();
        return of->loss(ids_of(r, step), kind == 2 || (kind == 1 && r == 2));
      };
      optimizer.zero_grad();
      loss(model, rank.rank).backward();
      torch::Tensor expected = torch::zeros({kRows, kWidth});
      for (int r = 0; r < rank.size; ++r) {
        alone->zero_grad();
        loss(alone, r).backward();
        const torch::Tensor own = alone->table->weight.grad();
        if (own.defined()) expected += (own.is_sparse() ? own.to_dense() : own) / rank.size;
      }
      const torch::Tensor average = model->table->weight.grad();
      ASSERT_EQ(average.is_sparse(), kind == 0 || kind == 3) << step;
      ASSERT_TRUE(torch::allclose(average.is_sparse() ? average.to_dense() : average, expected, 1e-5, 1e-7)) << step;
      optimizer.step();
    }
  });
}

TEST(Sparse, StepsAndRanksMayDiffer) { expect_averages_where_steps_and_ranks_differ(Lies::by_rows); }

TEST(Sparse, StepsAndRanksMayDifferWithATableThatLiesColumnByColumn) {
  expect_averages_where_steps_and_ranks_differ(Lies::by_columns);
}

TEST(Sparse, SeveralPassesAreAddedUp) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(3);
    Table model;
    torch::optim::SGD sgd(model->parameters(), 0.0);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (int64_t step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      {
        const auto guard = optimizer.no_sync();
        model->loss(ids_of(rank.rank, step)).backward();
      }
      model->loss(ids_of(rank.rank, step + 50)).backward();
      const torch::Tensor average = model->table->weight.grad().to_dense().clone();
      torch::Tensor expected = torch::zeros({kRows, kWidth});
      for (int r = 0; r < 2; ++r) {
        for (const int64_t part : {step, step + 50}) {
          expected += torch::autograd::grad({model->loss(ids_of(r, part))}, {model->table->weight})[0].to_dense() / 2;
        }
      }
      ASSERT_TRUE(torch::allclose(average, expected, 1e-5, 1e-7)) << step;
      optimizer.step();
    }
  });
}

struct TwoParametersImpl : torch::nn::Module {
  TwoParametersImpl() {
    weight = register_parameter("weight", torch::ones({6, 2}));
    other = register_parameter("other", torch::ones({3}));
  }
  torch::Tensor weight, other;
};
TORCH_MODULE(TwoParameters);

// Autograd itself never makes such a gradient; a program can.
TEST(Sparse, OtherLayoutsAreRefusedByName) {
  run_ranks(2, [](const Rank& /*rank*/) {
    auto group = make_group();
    TwoParameters model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    model->weight.mutable_grad() = torch::ones({6, 2}).to_sparse_csr();
    EXPECT_THAT(message_of([&] { (model->other * 2).sum().backward(); }),
                HasSubstr("the gradient of weight is of layout SparseCsr; allowed are dense and sparse COO gradients"));
  });
}

// Trains on two ranks whose table is used at this many ids in a step, until rank 0's tuner has decided, and some
// steps longer. Then it uses the second number of ids. Returns rank 0's journal.
tuner::JournalFile train_with_journal(int64_t rows, int64_t width, bool is_sparse, int64_t ids, int64_t ids_later) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl");
  run_ranks(2, [&](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(3);
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(rows, width).sparse(is_sparse));
    torch::optim::SGD sgd(table->parameters(), 0.1);
    auto optimizer = wrap(sgd, *table, group, quiet({.fidelity = "exact", .journal = journal}));
    int64_t step = 0, count = ids;
    const auto train = [&](int) {
      torch::manual_seed(100 * ++step + rank.rank);
      optimizer.zero_grad();
      table->forward(torch::randint(0, rows, {count})).square().mean().backward();
      optimizer.step();
    };
    train_until_decided(optimizer, *group, train);
    for (int s = 0; s < 30; ++s) train(s);
    count = ids_later;
    for (int s = 0; s < 150; ++s) train(s);
  });
  return tuner::read_journal(journal).value();
}

TEST(Sparse, DenseGradientsThatAreMostlyZerosAreRecognised) {
  const tuner::JournalFile file = train_with_journal(20'000, 64, /*is_sparse=*/false, 1000, 1000);
  const core::Content& content = file.job.table.tensors[0].content;
  EXPECT_EQ(content.row, 64);
  EXPECT_NEAR(content.of_one, 0.05, 0.03);
  EXPECT_NEAR(content.of_all, 0.1, 0.05);
  EXPECT_EQ(std::ranges::count(file.decisions, tuner::Decision::What::density, &tuner::Decision::what), 0);
}

// In a table that lies column by column, zeros come one by one.
TEST(Sparse, TheJournalSaysHowATableLies) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl");
  run_ranks(2, [&](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(3);
    Table model(kRows, Lies::by_columns);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact", .journal = journal}));
    for (int64_t step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      model->loss(ids_of(rank.rank, step)).backward();
      optimizer.step();
    }
  });
  const core::GradientTable table = tuner::read_journal(journal).value().job.table;
  const auto found = std::ranges::find(table.tensors, "table.weight", &core::TensorInfo::name);
  ASSERT_NE(found, table.tensors.end());
  EXPECT_EQ(found->memory_order, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(found->content.row, 1);
  EXPECT_LT(found->content.of_one, 0.1);
}

TEST(Sparse, ADensityThatChangesLeadsToANewSearch) {
  const tuner::JournalFile file = train_with_journal(2000, 8, /*is_sparse=*/true, 40, 1000);
  using What = tuner::Decision::What;
  const auto density = std::ranges::find(file.decisions, What::density, &tuner::Decision::what);
  ASSERT_NE(density, file.decisions.end());
  EXPECT_EQ(density->label, "weight");
  EXPECT_GT(density->value, std::log(5));
  // On a busy machine there may be an earlier look, for another reason.
  const auto look = std::ranges::find(density, file.decisions.end(), What::look_again, &tuner::Decision::what);
  ASSERT_NE(look, file.decisions.end());
  EXPECT_GE(look->step, density->step);
}

double resident_mb() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) * 1e-6;
}

// In a new job, in one that starts from a strategy file, and in one that continues from a checkpoint.
TEST(Sparse, ATableOfWhichFewRowsAreUsedIsNeverLaidOut) {
  if (kSanitizing) GTEST_SKIP() << "a sanitizer keeps several bytes for each byte that is read or written";
  constexpr int64_t kMany = 4'000'000;
  const TempFolder folder;
  run_ranks(2, [&](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(3);
    Table model(kMany);
    const double table_mb = static_cast<double>(kMany * kWidth * 4) * 1e-6;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const auto grown_mb = [&](Options options, const std::string& resume) {
      const double before_mb = resident_mb();
      options.fidelity = "exact";
      options.tuning_budget = 0;
      auto optimizer = wrap(sgd, *model, group, quiet(options));
      if (!resume.empty()) optimizer.load_checkpoint(resume);
      for (int64_t step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        model->loss(ids_of(rank.rank, step)).backward();
        EXPECT_TRUE(model->table->weight.grad().is_sparse());
        optimizer.step();
      }
      const double mb = resident_mb() - before_mb;
      EXPECT_THAT(optimizer.result().description, HasSubstr("rows: encode@device all_gather decode@device"));
      optimizer.export_strategy(folder.path("strategy.json"));
      optimizer.save_checkpoint(folder.path("checkpoint"));
      return mb;
    };
    EXPECT_LT(grown_mb({}, ""), table_mb / 2);
    EXPECT_LT(grown_mb({.strategy = folder.path("strategy.json")}, ""), table_mb / 2);
    EXPECT_LT(grown_mb({}, folder.path("checkpoint")), table_mb / 2);
  });
}

}  // namespace
}  // namespace gradtune::test
