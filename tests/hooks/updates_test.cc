// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests updates as programs make them: by the wrapped optimizer or without it, by several that step in turn, at
// other weights for a while, or skipped. In all of them, buffers are those of rank 0.
#include <gmock/gmock.h>

#include "hooks/session.h"
#include "hooks/trained_by.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"

namespace gradtune::test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string standard_error_of(const std::function<void()>& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

// A pass through two layers, with a call between them once the second one has its gradients.
void backward_through(torch::nn::Sequential& model, const torch::Tensor& x, const std::function<void()>& between) {
  torch::Tensor hidden = model[0]->as<torch::nn::Linear>()->forward(x);
  hidden.register_hook([&](const torch::Tensor&) { between(); });
  model[2]->as<torch::nn::Linear>()->forward(hidden).square().mean().backward();
}

// In updates that are not reported too, buffers are rank 0's, and steps are counted.
TEST(Updates, UpdatesWithoutTheWrappedStepAreSteps) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    model->push_back(torch::nn::BatchNorm1d(5));
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    constexpr int kSteps = 8;
    const std::string said = standard_error_of([&] {
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        loss_of(model, make_data(rank.rank, step)).backward();
        sgd.step();
        for (const torch::Tensor& buffer : model->buffers()) EXPECT_EQ(difference_from_rank0(buffer, *group), 0);
      }
    });
    EXPECT_THAT(said, Not(HasSubstr("warning")));
    EXPECT_EQ(optimizer.progress().step, kSteps - 2)
        << "the first may be part of a step, the last one has no next pass";
    optimizer.zero_grad();
    loss_of(model, make_data(rank.rank, kSteps)).backward();
    optimizer.step();
    EXPECT_EQ(optimizer.progress().step, kSteps);
  });
}

// A second pass at other weights, as in sharpness-aware minimisation.
TEST(Updates, AnUntoldUpdateBeforeAToldOneIsPartOfItsStep) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& p : model->parameters()) p.add_(p.grad(), 0.05);
      }
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
      EXPECT_EQ(optimizer.progress().step, step + 1);
    }
  });
}

TEST(Updates, BuffersThatChangeWithoutABackwardPassAreBroughtWhenAskedFor) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    model->push_back(torch::nn::BatchNorm1d(5));
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
      model->forward(make_data(rank.rank, step + 50).inputs);
      const torch::Tensor mean = model->named_buffers()["5.running_mean"];
      const double apart = difference_from_rank0(mean, *group);
      EXPECT_EQ(apart > 0, rank.rank != 0);
      optimizer.broadcast_buffers();
      for (const torch::Tensor& buffer : model->buffers()) EXPECT_EQ(difference_from_rank0(buffer, *group), 0);
    }
  });
}

// Buffers arrive when the first pass has ended, and the graph may need the old ones for the second.
TEST(Updates, AGraphThatIsKeptRunsBackwardTwice) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    model->push_back(torch::nn::BatchNorm1d(5));
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const torch::Tensor out = model->forward(make_data(rank.rank, step).inputs);
      out.square().mean().backward({}, /*retain_graph=*/true);
      const torch::Tensor once = model->parameters()[0].grad().clone();
      out.square().mean().backward();
      EXPECT_LE((model->parameters()[0].grad() - 2 * once).abs().max().item<double>(), 1e-6);
      optimizer.step();
    }
  });
}

// As with a parameter's hook that steps an optimizer as soon as the gradient is ready.
TEST(Updates, AnUpdateWithinBackwardIsAnError) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    const auto train = [&](bool within) {
      optimizer.zero_grad();
      backward_through(model, make_data(rank.rank, 0).inputs, [&] {
        const torch::NoGradGuard no_grad;
        if (within) model->parameters()[2].sub_(0.1F + static_cast<float>(rank.rank));
      });
      optimizer.step();
    };
    for (int step = 0; step < 3; ++step) train(false);
    EXPECT_THAT(message_of([&] { train(true); }), HasSubstr("parameters were changed within a backward pass"));
  });
}

TEST(Updates, WhatDriftsApartIsWarnedOfOnce) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const auto backward = [&](int step) { loss_of(model, make_data(rank.rank, step)).backward(); };
    {
      auto optimizer = wrap(sgd, *model, group, quiet());
      const std::string said = standard_error_of([&] {
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          const auto guard = optimizer.no_sync();
          backward(step);
          optimizer.step();
        }
      });
      EXPECT_THAT(said, HasSubstr("step() was called after backward passes that were all under no_sync()"));
      EXPECT_EQ(said.find("gradtune: warning"), said.rfind("gradtune: warning")) << said;
    }
    auto optimizer = wrap(sgd, *model, group, quiet());
    EXPECT_THAT(standard_error_of([&] {
                  for (int step = 0; step < 6; ++step) {
                    optimizer.zero_grad();
                    backward(step);
                    if (step == 2) continue;  // a skipped step
                    if (step == 3) backward(step + 100);
                    optimizer.step();
                  }
                }),
                Not(HasSubstr("warning")));
  });
}

TEST(Updates, AStepThatWasLeftOutMayBeFollowedByACheckpoint) {
  const TempFolder folder;
  run_ranks(2, [&](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    for (int step = 0; step < 3; ++step) {
      loss_of(model, make_data(rank.rank, step)).backward();
      if (step == 1) optimizer.zero_grad();  // with or without it: Python's programs need not call it
      EXPECT_EQ(message_of([&] { optimizer.save_checkpoint(folder.path()); }), "no error");
      EXPECT_EQ(optimizer.progress().step, 0);
    }
    loss_of(model, make_data(rank.rank, 3)).backward();
    optimizer.load_checkpoint(folder.path());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
      EXPECT_EQ(optimizer.progress().step, step + 1);
    }
    for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
    backward_through(model, make_data(rank.rank, 4).inputs, [&] {
      EXPECT_THAT(message_of([&] { optimizer.save_checkpoint(folder.path()); }),
                  HasSubstr("inside of a backward pass"));
    });
    optimizer.step();
  });
}

// The user may run the update: a session is told of it before and after.
TEST(Updates, AnUpdateThatTheUserRunsIsAsOneOfTheSession) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    torch::nn::Sequential model = make_mlp(1), twin = make_mlp(1);
    for (torch::nn::Sequential* each : {&model, &twin}) (*each)->push_back(torch::nn::BatchNorm1d(5));
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD sgd(model->parameters(), options), twin_sgd(twin->parameters(), options);
    Session session(trained_by({&sgd}, *model), group, quiet({.fidelity = "exact", .tuning_budget = 0}));
    auto optimizer = wrap(twin_sgd, *twin, group, quiet({.fidelity = "exact", .tuning_budget = 0}));
    for (int step = 0; step < 5; ++step) {
      const Data data = make_data(rank.rank, step);
      sgd.zero_grad();
      loss_of(model, data).backward();
      session.begin_update();
      sgd.step();
      session.end_update();
      optimizer.zero_grad();
      loss_of(twin, data).backward();
      optimizer.step();
      EXPECT_EQ(session.progress().step, step + 1);
      for (size_t p = 0; p < model->parameters().size(); ++p) {
        EXPECT_TRUE(torch::equal(model->parameters()[p], twin->parameters()[p])) << p;
      }
      for (const torch::Tensor& buffer : model->buffers()) EXPECT_EQ(difference_from_rank0(buffer, *group), 0);
    }
    model->register_buffer("more", torch::zeros({1}));
    EXPECT_THAT(message_of([&] { session.begin_update(); }), HasSubstr("buffer more was added"));
  });
}

// The second of two optimizers steps in every third pass. A rank that steps one alone is reported.
TEST(Updates, OptimizersOfOneSessionNeedNotStepAsOften) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    Session session(trained_by({&sgd}, *model), group, quiet({.fidelity = "exact", .tuning_budget = 0}));
    const auto pass = [&](int step, bool with_second) {
      sgd.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      session.begin_update();
      sgd.step();
      EXPECT_TRUE(session.end_update(0));
      if (!with_second) return;
      session.begin_update();
      EXPECT_FALSE(session.end_update(1));
    };
    for (int step = 0; step < 9; ++step) {
      pass(step, step % 3 == 0);
      EXPECT_EQ(session.progress().step, step + 1);
    }
    pass(9, rank.rank == 1);
    EXPECT_THAT(message_of([&] { loss_of(model, make_data(rank.rank, 10)).backward(); }),
                HasSubstr("of the optimizers, rank 1 stepped 0, 1 since the backward pass before, rank 0 0"));
  });
}

}  // namespace
}  // namespace gradtune::test
