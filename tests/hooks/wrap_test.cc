// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <map>

#include "engine/compress/compressor.h"
#include "hooks/gradients.h"
#include "hooks/module_model.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/file_io.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::test {
namespace {

using testing::HasSubstr;

// Trains the same job in one process with the batches of all ranks: data-parallel training must equal it.
std::vector<torch::Tensor> reference_parameters(int size, int steps, int micro_steps = 1) {
  auto model = make_mlp(1);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    for (int micro = 0; micro < micro_steps; ++micro) {
      for (int rank = 0; rank < size; ++rank)
        (loss_of(model, make_data(rank, step * micro_steps + micro)) / size).backward();
    }
    sgd.step();
  }
  return model->parameters();
}

void expect_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), tolerance) << "parameter " << i;
  }
}

TEST(Wrap, TrainsLikeOneProcessWithAllTheData) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(/*seed=*/1 + rank.rank);  // only rank 0's values count
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (int step = 0; step < 30; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
    }
    expect_close(model->parameters(), reference_parameters(rank.size, 30), 2e-5);
    for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
  });
}

TEST(Wrap, GradientsAreAveragesWhenBackwardReturns) {
  run_ranks(3, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.0);
    auto optimizer = wrap(sgd, *model, group, quiet());
    for (int step = 0; step < 3; ++step) {
      std::vector<torch::Tensor> expected;
      for (const torch::Tensor& p : model->parameters()) expected.push_back(torch::zeros_like(p));
      auto twin = make_mlp(1);
      for (int r = 0; r < rank.size; ++r) {
        for (const torch::Tensor& p : twin->parameters()) p.mutable_grad().reset();
        loss_of(twin, make_data(r, step)).backward();
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += twin->parameters()[i].grad() / rank.size;
      }
      // The user may drop gradients in several ways: by us, by the inner optimizer, or to zeros.
      if (step == 0) optimizer.zero_grad();
      if (step == 1) optimizer.inner().zero_grad();
      if (step == 2) optimizer.inner().zero_grad(/*set_to_none=*/false);
      loss_of(model, make_data(rank.rank, step)).backward();
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_LE((model->parameters()[i].grad() - expected[i]).abs().max().item<double>(), 1e-6) << "step " << step;
      }
      optimizer.step();
    }
  });
}

TEST(Wrap, NoSyncAccumulates) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (int step = 0; step < 12; ++step) {
      optimizer.zero_grad();
      {
        const auto guard = optimizer.no_sync();
        for (int micro = 0; micro < 2; ++micro) loss_of(model, make_data(rank.rank, step * 3 + micro)).backward();
      }
      loss_of(model, make_data(rank.rank, step * 3 + 2)).backward();
      optimizer.step();
    }
    expect_close(model->parameters(), reference_parameters(rank.size, 12, 3), 2e-5);
  });
}

TEST(Wrap, SecondBackwardWithoutNoSyncAveragesTheSum) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      for (int micro = 0; micro < 2; ++micro) loss_of(model, make_data(rank.rank, step * 2 + micro)).backward();
      optimizer.step();
    }
    expect_close(model->parameters(), reference_parameters(rank.size, 6, 2), 2e-5);
  });
}

// A step with two passes is one step for the tuner, and the time of a skipped step belongs to no step.
TEST(Wrap, EveryStepIsScoredOnce) {
  const TempFolder folder;
  const std::string file = folder.path("journal.jsonl");
  constexpr int64_t kSteps = 12, kLeftOut = 7;
  run_ranks(2, [&](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.journal = file}));
    for (int64_t step = 0; step < kSteps; ++step) {
      if (step == kLeftOut) {
        optimizer.zero_grad();
        (loss_of(model, make_data(rank.rank, 100)) * std::numeric_limits<float>::infinity()).backward();
      }
      optimizer.zero_grad();
      for (int pass = 0; pass < 2; ++pass) loss_of(model, make_data(rank.rank, 2 * step + pass)).backward();
      optimizer.step();
    }
  });
  const auto journal = tuner::read_journal(file);
  ASSERT_TRUE(journal.ok()) << journal.error().message;
  std::map<int64_t, int> scored;
  for (const core::StepReport& report : journal.value().reports) scored[report.step] += report.excluded ? 0 : 1;
  for (int64_t step = 3; step < kSteps - 1; ++step) EXPECT_EQ(scored[step], step == kLeftOut ? 0 : 1) << step;
}

struct ForkImpl : torch::nn::Module {
  ForkImpl() {
    shared = register_module("shared", torch::nn::Linear(20, 20));
    left = register_module("left", torch::nn::Linear(20, 5));
    right = register_module("right", torch::nn::Linear(20, 5));
    never = register_module("never", torch::nn::Linear(20, 5));
  }
  torch::Tensor forward(const torch::Tensor& x, bool go_left) {
    const torch::Tensor h = shared->forward(torch::relu(shared->forward(x)));  // one weight, used twice
    return go_left ? left->forward(h) : right->forward(h);
  }
  torch::nn::Linear shared{nullptr}, left{nullptr}, right{nullptr}, never{nullptr};
};
TORCH_MODULE(Fork);

TEST(Wrap, UnusedAndSharedParametersAsWithDdp) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(1);
    Fork model;
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).weight_decay(0.1));
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    const torch::Tensor untouched = model->never->weight.detach().clone();
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      const Data data = make_data(rank.rank, step);
      torch::nn::functional::cross_entropy(model->forward(data.inputs, rank.rank == 0), data.targets).backward();
      EXPECT_FALSE(model->never->weight.grad().defined()) << "no rank used it";
      EXPECT_TRUE(model->left->weight.grad().defined() && model->right->weight.grad().defined());
      EXPECT_EQ(difference_from_rank0(model->left->weight.grad(), *group), 0);
      EXPECT_GT(model->right->weight.grad().abs().sum().item<double>(), 0) << "the other rank used it";
      optimizer.step();
    }
    EXPECT_TRUE(torch::equal(untouched, model->never->weight)) << "weight decay must not touch what no rank used";
    for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
  });
}

// Buffers of several dtypes and layouts, small, large and empty.
struct BufferedImpl : torch::nn::Module {
  explicit BufferedImpl(double value) {
    linear = register_module("linear", torch::nn::Linear(20, 5));
    norm = register_module("norm", torch::nn::BatchNorm1d(5));
    flag = register_buffer("flag", torch::full({3}, value > 0, torch::kBool));
    across = register_buffer("across", torch::full({7, 11}, value, torch::kDouble).t());
    half = register_buffer("half", torch::full({5}, value, torch::kHalf));
    none = register_buffer("none", torch::empty({0}));
    large = register_buffer("large", torch::full({3 << 20}, value));
    last = register_buffer("last", torch::full({1}, 3 * value));
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm->forward(linear->forward(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor flag, across, half, none, large, last;
};
TORCH_MODULE(Buffered);

TEST(Wrap, BuffersAreThoseOfRank0) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(rank.rank);
    Buffered model(1 - rank.rank);
    torch::optim::Adam adam(model->parameters());
    auto optimizer = wrap(adam, *model, group, quiet());
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      const Data data = make_data(rank.rank, step);
      const torch::Tensor loss = torch::nn::functional::cross_entropy(model->forward(data.inputs), data.targets);
      if (rank.rank == 1) model->across.fill_(-1);
      loss.backward();
      optimizer.step();
      EXPECT_TRUE(model->flag.all().item<bool>());
      for (const torch::Tensor& b : {model->across, model->half, model->large}) {
        EXPECT_TRUE((b == 1).all().item<bool>()) << step;
      }
      EXPECT_EQ(model->last.item<float>(), 3);
      for (const torch::Tensor& b : model->norm->buffers()) EXPECT_EQ(difference_from_rank0(b, *group), 0);
    }
  });
}

// Nothing else changes, so that these changes alone have it sent.
TEST(Wrap, ABufferThatOneRankChangesIsRank0sAfterThePass) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    const torch::Tensor buffer = model->register_buffer("constant", torch::zeros({3}));
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    for (int step = 0; step < 12; ++step) {
      optimizer.zero_grad();
      const torch::Tensor loss = loss_of(model, make_data(rank.rank, step));
      if (step % 4 == 1 && rank.rank == 1) buffer.variable_data().fill_(step);
      if (step % 4 == 3 && rank.rank == 0) buffer.variable_data().fill_(step);
      loss.backward();
      optimizer.step();
      const int last_of_rank0 = (step + 1) / 4 * 4 - 1;
      EXPECT_TRUE((buffer == std::max(0, last_of_rank0)).all().item<bool>()) << step << ": " << buffer;
    }
  });
}

// As with DDP, a gradient that the user keeps stays readable after the arena and the optimizer are gone.
TEST(Wrap, GradientsThatAreKeptOutliveTheArena) {
  run_ranks(1, [](const Rank&) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    torch::Tensor first, last, of_parameter;
    {
      auto optimizer = wrap(sgd, *model, group, quiet());
      loss_of(model, make_data(0, 0)).backward();  // lays out the arena anew
      first = model->parameters()[0].grad();
      of_parameter = first.clone();
      optimizer.step();
      EXPECT_TRUE(torch::equal(first, of_parameter));
      optimizer.zero_grad();
      loss_of(model, make_data(0, 1)).backward();
      last = model->parameters()[0].grad();
      of_parameter = last.clone();
    }
    EXPECT_TRUE(torch::equal(last, of_parameter));
    EXPECT_TRUE(torch::equal(model->parameters()[0].grad(), of_parameter));
  });
}

TEST(Wrap, ClippingSchedulersGroupsClosuresAndState) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    const auto make_adam = [](const std::vector<torch::Tensor>& parameters) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<torch::Tensor>(parameters.begin(), parameters.begin() + 2));
      groups.emplace_back(std::vector<torch::Tensor>(parameters.begin() + 2, parameters.end()),
                          std::make_unique<torch::optim::AdamWOptions>(1e-2));
      return torch::optim::AdamW(groups, torch::optim::AdamWOptions(1e-3));
    };
    torch::optim::AdamW adam = make_adam(model->parameters());
    auto optimizer = wrap(adam, *model, group, quiet({.fidelity = "exact"}));
    torch::optim::StepLR scheduler(optimizer.inner(), 2, 0.5);
    for (int step = 0; step < 6; ++step) {
      const torch::Tensor loss = optimizer.step([&] {
        optimizer.zero_grad();
        torch::Tensor value = loss_of(model, make_data(rank.rank, step));
        value.backward();
        torch::nn::utils::clip_grad_norm_(model->parameters(), 0.05);
        double squares = 0;
        for (const torch::Tensor& p : model->parameters()) squares += p.grad().pow(2).sum().item<double>();
        EXPECT_LE(std::sqrt(squares), 0.0501);
        return value;
      });
      EXPECT_TRUE(loss.defined());
      scheduler.step();
    }
    EXPECT_NEAR(static_cast<torch::optim::AdamWOptions&>(adam.param_groups()[0].options()).lr(), 1e-3 / 4, 1e-9);
    torch::serialize::OutputArchive saved;
    optimizer.save(saved);
    std::stringstream stream;
    saved.save_to(stream);
    torch::serialize::InputArchive restored;
    restored.load_from(stream);
    auto twin = make_mlp(1);
    for (size_t p = 0; p < twin->parameters().size(); ++p) {
      twin->parameters()[p].detach().copy_(model->parameters()[p].detach());
    }
    torch::optim::AdamW twin_adam = make_adam(twin->parameters());
    auto restored_optimizer = wrap(twin_adam, *twin, group, quiet({.fidelity = "exact"}));
    restored_optimizer.load(restored);
    for (auto& [trained, with] : {std::pair(&model, &optimizer), std::pair(&twin, &restored_optimizer)}) {
      with->zero_grad();
      loss_of(*trained, make_data(rank.rank, 7)).backward();
      with->step();
    }
    expect_close(twin->parameters(), model->parameters(), 0);
    for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
  });
}

TEST(Wrap, SixteenBitGradients) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    for (const torch::ScalarType type : {torch::kBFloat16, torch::kHalf}) {
      torch::manual_seed(1);
      torch::nn::Sequential model(torch::nn::Linear(20, 8), torch::nn::Linear(8, 5));
      model->to(type);
      torch::optim::SGD sgd(model->parameters(), 0.01);
      auto optimizer = wrap(sgd, *model, group, quiet());
      for (int step = 0; step < 25; ++step) {
        optimizer.zero_grad();
        loss_of(model, make_data(rank.rank, step, 8, type)).backward();
        for (const torch::Tensor& p : model->parameters()) {
          EXPECT_EQ(p.grad().scalar_type(), type);
          EXPECT_EQ(difference_from_rank0(p.grad(), *group), 0);
        }
        optimizer.step();
      }
    }
  });
}

TEST(Wrap, NonFiniteStepIsSeenByAllAndCounted) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "lossy", .compressors = {{"topk:0.1"}}}));
    for (int step = 0; step < 40; ++step) {
      optimizer.zero_grad();
      torch::Tensor loss = loss_of(model, make_data(rank.rank, step));
      const bool bad = step % 10 == 9;
      if (bad && rank.rank == 1) loss = loss * std::numeric_limits<float>::infinity();
      loss.backward();
      for (const torch::Tensor& p : model->parameters()) {
        EXPECT_EQ(torch::isfinite(p.grad()).all().item<bool>(), !bad) << "step " << step << " rank " << rank.rank;
      }
      if (!bad) optimizer.step();  // as a gradient scaler does
    }
    EXPECT_EQ(optimizer.progress().nonfinite_steps, 4);
    for (const torch::Tensor& p : model->parameters()) {
      EXPECT_TRUE(torch::isfinite(p).all().item<bool>());
      EXPECT_EQ(difference_from_rank0(p, *group), 0);
    }
  });
}

// I1 and I3 on real ranks: the epoch is the same in every step (otherwise an error ends the run), through all stages
// of tuning.
TEST(Wrap, TunesToTheEndOnFourRanks) {
  const auto train = [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1, 256);
    torch::optim::SGD sgd(model->parameters(), 0.05);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "lossy", .tuning_share = 1.0}));
    std::vector<int64_t> epochs;
    train_until_decided(optimizer, *group, [&](int step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step % 16)).backward();
      optimizer.step();
      epochs.push_back(optimizer.progress().epoch);
    });
    const torch::Tensor mine = torch::tensor(epochs);
    EXPECT_EQ(difference_from_rank0(mine, *group), 0);
    EXPECT_GT(epochs.back(), 5) << "strategies were switched";
    if (rank.rank == 0) {
      EXPECT_TRUE(optimizer.result().decided);  // on a busy machine an alarm may have started another look
    }
    for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
  };
  run_ranks(4, train, {.environment = {{"GRADTUNE_PACING_MBIT", "100"}}});  // on a slow link there is something to gain
}

TEST(Wrap, ExportedStrategyRunsFromTheFirstStep) {
  const TempFolder folder;
  const std::string file = folder.path("strategy.json");
  run_ranks(2, [&](const Rank& rank) {
    auto group = make_group();
    std::string first;
    {
      auto model = make_mlp(1);
      torch::optim::SGD sgd(model->parameters(), 0.05);
      auto optimizer = wrap(sgd, *model, group, quiet());
      for (int step = 0; step < 20; ++step) {
        optimizer.zero_grad();
        loss_of(model, make_data(rank.rank, step)).backward();
        optimizer.step();
      }
      optimizer.export_strategy(file);
    }
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.05);
    const auto wrap_again = [&](torch::nn::Sequential& of, torch::optim::SGD& with) {
      return wrap(with, *of, group, quiet({.strategy = file, .tuning_budget = 0}));
    };
    {
      auto optimizer = wrap_again(model, sgd);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        loss_of(model, make_data(rank.rank, step)).backward();
        optimizer.step();
        if (rank.rank == 0) {
          EXPECT_EQ(optimizer.progress().stage, "imported");
        }
      }
    }
    auto other = make_mlp(1, /*width=*/32);
    torch::optim::SGD other_sgd(other->parameters(), 0.05);
    EXPECT_THAT(message_of([&] { wrap_again(other, other_sgd); }), HasSubstr("model"));
  });
}

// Each gradient travels when it is ready, for any order of gradients in a file; here it is that of the forward pass.
TEST(Wrap, AnImportedStrategyMayLayTheGradientsInAnyOrder) {
  const TempFolder folder;
  const std::string file = folder.path("strategy.json");
  run_ranks(2, [&](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    if (rank.rank == 0) {
      Console console;
      Warnings warnings(console, 0);
      core::GradientTable table = Gradients(ModuleModel(*model, true), &sgd, warnings).table();
      std::reverse(table.tensors.begin(), table.tensors.end());
      const core::Strategy strategy = core::uniform(core::cut(table, 4096, 8192, false), core::plain_all_reduce(), 2);
      const auto text = tuner::to_json(tuner::strategy_file(table, 2, core::Fidelity::exact, "forward", strategy));
      ASSERT_TRUE(tuner::write_file_atomically(file, text).ok());
    }
    group->barrier()->wait();
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact", .strategy = file, .tuning_budget = 0}));
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
    }
    expect_close(model->parameters(), reference_parameters(rank.size, 10), 2e-5);
    for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
  });
}

TEST(Wrap, AStrategyWithLevelsRunsWhereThereAreNodes) {
  const TempFolder folder;
  const std::string file = folder.path("strategy.json");
  run_ranks(4, [&](const Rank& rank) {
    auto group = make_group();
    const auto trained = [&](const std::optional<std::string>& strategy) {
      auto model = make_mlp(1);
      torch::optim::SGD sgd(model->parameters(), 0.05);
      auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact", .strategy = strategy, .tuning_budget = 0}));
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        loss_of(model, make_data(rank.rank, step)).backward();
        optimizer.step();
      }
      if (!strategy) optimizer.export_strategy(file);
      return torch::nn::utils::parameters_to_vector(model->parameters()).detach();
    };
    const torch::Tensor flat = trained({});
    if (rank.rank == 0) {
      auto read = tuner::parse_strategy(tuner::read_file(file, 1 << 20).value(), compress::known_traits()).value();
      for (core::Bucket& bucket : read.strategy.buckets) {
        bucket.option = core::parse_option("reduce_scatter@intra all_reduce@inter all_gather@intra", {}).value();
      }
      read.strategy.order = core::staggered_order(read.strategy.buckets);
      ASSERT_TRUE(tuner::write_file_atomically(file, tuner::to_json(read)).ok());
    }
    group->barrier()->wait();
    EXPECT_THAT(message_of([&] { trained(file); }), HasSubstr("levels need nodes")) << "all ranks are on this machine";
    setenv("GRADTUNE_NODE", std::to_string(rank.rank / 2).c_str(), 1);
    EXPECT_LE((trained(file) - flat).abs().max().item<double>(), 1e-6);
  });
}

}  // namespace
}  // namespace gradtune::test
