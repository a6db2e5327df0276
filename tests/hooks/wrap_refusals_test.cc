// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests refusals of wrap(), and errors that are found later. Each has a name, on every rank.
#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Wrap, RefusesByName) {
  run_ranks(1, [](const Rank&) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const auto refusal = [&](const Options& options) { return message_of([&] { wrap(sgd, *model, group, options); }); };
    EXPECT_THAT(refusal({.fidelity = "loss"}), AllOf(HasSubstr("fidelity"), HasSubstr("exact, half and lossy")));
    EXPECT_THAT(refusal({.compressors = {{"topk:2"}}}), HasSubstr("topk"));
    EXPECT_THAT(refusal({.compressors = {{"topk:0.01"}}}), HasSubstr("needs fidelity lossy"));
    EXPECT_THAT(refusal({.compressors = {{"topk:*"}}}), HasSubstr("needs fidelity lossy"));
    EXPECT_EQ(refusal(quiet({.fidelity = "lossy", .compressors = {{"topk:*"}}})), "no error");
    EXPECT_THAT(refusal({.compressors = {{"zip"}}}), HasSubstr("known are none"));
    const Options dgc = quiet({.fidelity = "lossy", .compressors = {{"dgc:0.01"}}});
    EXPECT_EQ(refusal(dgc), "no error");
    torch::optim::SGD with_momentum(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::AdamW adam(model->parameters());
    for (torch::optim::Optimizer* twice : std::initializer_list<torch::optim::Optimizer*>{&with_momentum, &adam}) {
      EXPECT_THAT(message_of([&] { wrap(*twice, *model, group, dgc); }),
                  AllOf(HasSubstr("dgc:0.01"), HasSubstr("has"), HasSubstr("0.9 as well")));
    }
    EXPECT_THAT(refusal({.policy = "guess"}), HasSubstr("mergecomp"));
    EXPECT_THAT(refusal({.strategy = "/nowhere/strategy.json"}), HasSubstr("/nowhere/strategy.json"));
    EXPECT_THAT(refusal({.error_budget = 0}),
                HasSubstr("error_budget (argument) is \"0.0\": allowed is a number from"));
    EXPECT_THAT(refusal({.timeout = -1}), HasSubstr("timeout"));
    setenv("GRADTUNE_FIDELTY", "exact", 1);
    EXPECT_THAT(refusal({}), AllOf(HasSubstr("GRADTUNE_FIDELTY"), HasSubstr("fidelity")));
    unsetenv("GRADTUNE_FIDELTY");

    torch::optim::LBFGS lbfgs(model->parameters());
    EXPECT_THAT(message_of([&] { wrap(lbfgs, *model, group); }), HasSubstr("LBFGS"));
    auto stranger = torch::zeros({3}, torch::requires_grad());
    torch::optim::SGD with_stranger({stranger}, 0.1);
    EXPECT_THAT(message_of([&] { wrap(with_stranger, *model, group); }), HasSubstr("not in the module"));
    torch::nn::Sequential complex(torch::nn::Linear(2, 2));
    complex->to(torch::kComplexFloat);
    torch::optim::SGD complex_sgd(complex->parameters(), 0.1);
    EXPECT_THAT(message_of([&] { wrap(complex_sgd, *complex, group); }),
                HasSubstr("float32, float64, bfloat16 or float16"));

    auto optimizer = wrap(sgd, *model, group, quiet());
    const auto step = [&] {
      optimizer.zero_grad();
      loss_of(model, make_data(0, 0)).backward();
      optimizer.step();
    };
    step();
    model->push_back(torch::nn::Linear(5, 5));
    EXPECT_THAT(message_of(step), HasSubstr("parameter 5.weight was added"));
  });
}

TEST(Wrap, ModelMovedAfterwardsIsRefused) {
  run_ranks(1, [](const Rank&) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    model->to(torch::kBFloat16);
    EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("after the model is where it is trained"));
  });
}

TEST(Wrap, RanksThatDifferAreNamed) {
  run_ranks(3, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1, rank.rank == 2 ? 32 : 64);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const std::string message = message_of([&] { wrap(sgd, *model, group, quiet()); });
    EXPECT_THAT(message,
                AllOf(HasSubstr("rank " + std::to_string(rank.rank) + " at step 0"), HasSubstr("from rank 0: rank 2"),
                      HasSubstr("parameter 0.weight: shape is [32, 20] on rank 2 and [64, 20] on rank 0")));
  });
}

TEST(Wrap, OptionsThatRanksMustShareAreCompared) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const auto refusal = [&](const Options& of_rank1) {
      return message_of([&] { wrap(sgd, *model, group, quiet(rank.rank == 1 ? of_rank1 : Options())); });
    };
    const auto differs = [](const char* what) { return AllOf(HasSubstr("from rank 0: rank 1"), HasSubstr(what)); };
    EXPECT_EQ(refusal({}), "no error");
    EXPECT_THAT(refusal({.seed = 1}), differs("option seed: it is 1 on rank 1 and 0 on rank 0"));
    EXPECT_THAT(refusal({.strategy = "s.json"}),
                differs("option strategy: it is a file on rank 1 and not set on rank 0"));
    EXPECT_THAT(refusal({.tuning_budget = 0}),
                differs("option tuning_budget: it is 0 on rank 1 and above 0 on rank 0"));
    EXPECT_THAT(refusal({.lossy_after = 9}), differs("option lossy_after: it is 9 on rank 1 and not set on rank 0"));
  });
}

TEST(Wrap, AJournalThatCanNotBeWrittenIsToldToAllRanks) {
  run_ranks(2, [](const Rank&) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    EXPECT_THAT(message_of([&] { wrap(sgd, *model, group, quiet({.journal = "/nowhere/job.jsonl"})); }),
                AllOf(HasSubstr("rank 0 can not write the journal"), HasSubstr("/nowhere/job.jsonl")));
  });
}

// Each rank would train it for itself.
TEST(Wrap, AParameterThatIsUnfrozenOrReplacedAfterwardsIsRefused) {
  run_ranks(1, [](const Rank&) {
    auto group = make_group();
    const auto message_after = [&](const std::function<void(torch::nn::Sequential&)>& change) {
      auto model = make_mlp(1);
      model->parameters()[0].set_requires_grad(false);
      torch::optim::SGD sgd(model->parameters(), 0.1);
      auto optimizer = wrap(sgd, *model, group, quiet());
      change(model);
      return message_of([&] {
        loss_of(model, make_data(0, 0)).backward();
        optimizer.step();
      });
    };
    EXPECT_EQ(message_after([](torch::nn::Sequential&) {}), "no error");
    EXPECT_EQ(message_after([](torch::nn::Sequential& m) { m->parameters()[2].set_requires_grad(false); }), "no error");
    EXPECT_THAT(message_after([](torch::nn::Sequential& m) { m->parameters()[0].set_requires_grad(true); }),
                HasSubstr("0.weight was added, replaced or unfrozen"));
    EXPECT_THAT(message_after([](torch::nn::Sequential& m) { m->replace_module("4", torch::nn::Linear(64, 5).ptr()); }),
                HasSubstr("4.weight was added, replaced or unfrozen"));
  });
}

// A backward pass throws on rank 1 after some of its gradients were sent. That rank learns it in its next call, the
// other one in its own pass.
TEST(Wrap, ABackwardPassThatEndsWithAnExceptionEndsTheJobByName) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
    }
    torch::Tensor hidden = model[1]->as<torch::nn::ReLU>()->forward(
        model[0]->as<torch::nn::Linear>()->forward(make_data(rank.rank, 2).inputs));
    if (rank.rank == 1) {
      hidden.register_hook([](const torch::Tensor&) { throw std::runtime_error("of the user"); });
    }
    torch::Tensor loss = model[2]->as<torch::nn::Linear>()->forward(hidden).sum();
    const std::string backward = message_of([&] { loss.backward(); });
    if (rank.rank == 1) {
      EXPECT_THAT(backward, HasSubstr("of the user"));
      EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("a backward pass ended with an exception"));
    } else {
      EXPECT_THAT(backward, AllOf(HasSubstr("rank 0 at step 2"), HasSubstr("rank 1 at step 2")));
    }
    EXPECT_NE(message_of([&] { optimizer.zero_grad(); }), "no error");
  });
}

}  // namespace
}  // namespace gradtune::test
