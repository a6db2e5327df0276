// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// State that all ranks must share is compared before any data moves. Each difference is one error on all ranks,
// which names the ranks, the thing and the property.
#include "hooks/shared_state.h"

#include <gmock/gmock.h>

#include <functional>

#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SharedState, TheFirstDifferenceIsNamed) {
  const auto text = [](std::vector<SharedThing> things) { return to_text(things); };
  const std::string one = text({{"a", {{"x", "1"}, {"y", "2"}}}, {"b", {{"x", "1"}}}});
  EXPECT_EQ(first_difference(one, 3, one, 0), "");
  EXPECT_EQ(first_difference(text({{"a", {{"x", "1"}, {"y", "4"}}}, {"b", {{"x", "1"}}}}), 3, one, 0),
            "a: y is 4 on rank 3 and 2 on rank 0");
  EXPECT_EQ(first_difference(text({{"a", {{"x", "1"}, {"y", "2"}}}}), 3, one, 0),
            "nothing more on rank 3 stands where b on rank 0 does");
  EXPECT_EQ(first_difference(text({{"c", {{"x", "1"}}}}), 3, one, 0), "c on rank 3 stands where a on rank 0 does");
  EXPECT_EQ(first_difference(text({{"a", {{"x", "1"}}}}), 3, one, 0), "a: y is  on rank 3 and 2 on rank 0");
  // A name may contain the separators.
  EXPECT_EQ(first_difference(text({{"a\n\tb", {}}}), 1, text({{"a\n\tc", {}}}), 0),
            "a  b on rank 1 stands where a  c on rank 0 does");
}

struct HolderImpl : torch::nn::Module {
  HolderImpl() { linear = register_module("linear", torch::nn::Linear(4, 4)); }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Holder);

struct Difference {
  const char* what;
  std::function<void(HolderImpl& model, bool is_other)> make;
  std::vector<const char*> said;
};

torch::Tensor transposed_in_memory(torch::Tensor values) { return values.t().contiguous().t(); }

const std::vector<Difference> kDifferences = {
    {"frozen parameters of other sizes",
     [](HolderImpl& m, bool other) {
       m.register_parameter("table", torch::zeros({other ? 120 : 100, 3}), false);
     },
     {"parameter table: shape is [120, 3] on rank 1 and [100, 3] on rank 0"}},
    {"a parameter that is frozen on one rank",
     [](HolderImpl& m, bool other) { m.linear->bias.set_requires_grad(!other); },
     {"parameter linear.bias: requires_grad is false on rank 1 and true on rank 0"}},
    {"a parameter with another name",
     [](HolderImpl& m, bool other) { m.register_parameter(other ? "b" : "a", torch::zeros({3})); },
     {"parameter b on rank 1 stands where parameter a on rank 0 does"}},
    {"parameters of other dtypes",
     [](HolderImpl& m, bool other) {
       m.register_parameter("p", torch::zeros({3}, other ? torch::kBFloat16 : torch::kFloat));
     },
     {"parameter p: dtype is BFloat16 on rank 1 and Float on rank 0"}},
    {"a memory format",
     [](HolderImpl& m, bool other) {
       const torch::Tensor p = torch::rand({8, 4, 3, 3});
       m.register_parameter("conv", other ? p.contiguous(torch::MemoryFormat::ChannelsLast) : p);
     },
     {"parameter conv: memory format (strides) is [36, 1, 12, 4] on rank 1 and [36, 9, 3, 1] on rank 0"}},
    {"a memory format of large parameters",
     [](HolderImpl& m, bool other) {
       const torch::Tensor p = torch::rand({2048, 1024});
       m.register_parameter("large", other ? transposed_in_memory(p) : p);
     },
     {"parameter large: memory format (strides) is [1, 2048] on rank 1 and [1024, 1] on rank 0"}},
    {"buffers of other sizes",
     [](HolderImpl& m, bool other) { m.register_buffer("cache", torch::zeros({other ? 20 : 10})); },
     {"buffer cache: shape is [20] on rank 1 and [10] on rank 0"}},
    {"large buffers of which the root's is larger",
     [](HolderImpl& m, bool other) { m.register_buffer("cache", torch::zeros({other ? 1000 : 2000})); },
     {"buffer cache: shape is [1000] on rank 1 and [2000] on rank 0"}},
    {"buffers of other dtypes",
     [](HolderImpl& m, bool other) {
       m.register_buffer("count", torch::zeros({3}, other ? torch::kLong : torch::kDouble));
     },
     {"buffer count: dtype is Long on rank 1 and Double on rank 0"}},
    {"buffers in another order",
     [](HolderImpl& m, bool other) {
       m.register_buffer(other ? "b" : "a", torch::zeros({100}));
       m.register_buffer(other ? "a" : "b", torch::zeros({300}));
     },
     {"buffer b on rank 1 stands where buffer a on rank 0 does"}},
    {"a buffer on rank 0 only",
     [](HolderImpl& m, bool other) {
       if (!other) m.register_buffer("own", torch::zeros({3}));
     },
     {"nothing more on rank 1 stands where buffer own on rank 0 does"}},
    {"a buffer on rank 1 only",
     [](HolderImpl& m, bool other) {
       if (other) m.register_buffer("own", torch::zeros({3}));
     },
     {"buffer own on rank 1 stands where nothing more on rank 0 does"}},
};

TEST(SharedState, EachDifferenceIsOneErrorOnAllRanks) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    for (const Difference& difference : kDifferences) {
      SCOPED_TRACE(difference.what);
      torch::manual_seed(1);
      Holder model;
      difference.make(*model, rank.rank == 1);
      torch::optim::SGD sgd(model->parameters(), 0.1);
      const std::string message = message_of([&] { wrap(sgd, *model, group, {.quiet = true}); });
      EXPECT_THAT(message, HasSubstr("(from rank 0: rank 1)"));
      for (const char* said : difference.said) EXPECT_THAT(message, HasSubstr(said));
    }
  });
}

TEST(SharedState, GroupsOfTheOptimizerAreCompared) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    const auto parameters = model->parameters();
    const auto groups = [&](std::ptrdiff_t first) {
      return std::vector<torch::optim::OptimizerParamGroup>{
          torch::optim::OptimizerParamGroup({parameters.begin(), parameters.begin() + first}),
          torch::optim::OptimizerParamGroup({parameters.begin() + first, parameters.end()})};
    };
    torch::optim::SGD sgd(groups(rank.rank == 1 ? 3 : 2), 0.1);
    EXPECT_THAT(message_of([&] { wrap(sgd, *model, group, {.quiet = true}); }),
                HasSubstr("parameter 2.weight: optimizer is 0, group 0 on rank 1 and 0, group 1 on rank 0"));
  });
}

// The same format on all ranks is free to choose: gradients have the layout of their parameters.
TEST(SharedState, OneMemoryFormatOnAllRanksTrains) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(1);
    torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)), torch::nn::Flatten(),
                                torch::nn::Linear(16, 5));
    model->to(torch::kFloat);
    for (torch::Tensor& p : model->parameters()) {
      if (p.dim() == 4) p.set_data(p.detach().contiguous(torch::MemoryFormat::ChannelsLast));
    }
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      torch::manual_seed(100 * step + rank.rank);
      model->forward(torch::randn({2, 3, 4, 4})).square().mean().backward();
      optimizer.step();
      for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
    }
  });
}

// Strides of buffers are free, because they travel in the order of rows. So are signs that change when numbers are
// read.
TEST(SharedState, BuffersMayLieOtherwiseOnEachRank) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    for (const int64_t size : {8, 2048}) {
      torch::manual_seed(rank.rank);
      Holder model;
      const torch::Tensor values = torch::rand({size, size / 2});
      model->register_buffer("table", rank.rank == 1 ? transposed_in_memory(values) : torch::_neg_view(values));
      torch::optim::SGD sgd(model->parameters(), 0.1);
      auto optimizer = wrap(sgd, *model, group, quiet());
      EXPECT_EQ(difference_from_rank0(model->named_buffers()["table"], *group), 0) << size;
    }
  });
}

TEST(SharedState, BuffersAreEachRanksOwnWhereAskedFor) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    Holder model;
    model->register_buffer("seed", torch::full({3 + rank.rank}, rank.rank, torch::kLong));
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.broadcast_buffers = false}));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model->linear->forward(torch::randn({2, 4})).sum().backward();
      model->named_buffers()["seed"].add_(1);
      optimizer.step();
    }
    EXPECT_TRUE((model->named_buffers()["seed"] == rank.rank + 3).all().item<bool>());
  });
}

TEST(SharedState, BuffersThatGrowOnAllRanksAreSent) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    Holder model;
    model->register_buffer("cache", torch::zeros({3}));
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    for (int64_t step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      model->named_buffers()["cache"].resize_({4 + step}).fill_(10 * step + rank.rank);
      model->linear->forward(torch::randn({2, 4})).sum().backward();
      optimizer.step();
      EXPECT_TRUE((model->named_buffers()["cache"] == 10 * step).all().item<bool>()) << "rank 0's";
    }
    model->linear->forward(torch::randn({2, 4})).sum().backward();
    model->named_buffers()["cache"].resize_({3}).fill_(rank.rank);
    optimizer.step();
    model->linear->forward(torch::randn({2, 4})).sum().backward();
    EXPECT_TRUE((model->named_buffers()["cache"] == 0).all().item<bool>()) << "rank 0's";
    // At that time the layer has the gradient of its bias.
    torch::Tensor hidden = torch::randn({2, 4}).requires_grad_() * 2;
    hidden.register_hook([&](const torch::Tensor&) { model->named_buffers()["cache"].resize_({6}); });
    EXPECT_THAT(message_of([&] { model->linear->forward(hidden).sum().backward(); }),
                HasSubstr("a buffer changed its shape or dtype within a backward pass"));
  });
}

TEST(SharedState, WhatIsIgnoredStaysEachRanksOwn) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(rank.rank);
    Holder model;
    torch::nn::Sequential expert(torch::nn::Linear(4, rank.rank + 2), torch::nn::Linear(rank.rank + 2, 4));
    model->register_module("expert", expert);
    model->register_buffer("own", torch::full({rank.rank + 1}, rank.rank));
    model->register_parameter("expertise", torch::full({2}, static_cast<float>(rank.rank)));
    const auto start = [](const torch::nn::Module& module) {
      std::vector<torch::Tensor> values;
      for (const torch::Tensor& p : module.parameters()) values.push_back(p.detach().clone());
      return values;
    };
    const std::vector<torch::Tensor> before = start(*expert);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    EXPECT_THAT(message_of([&] { wrap(sgd, *model, group, quiet()); }), HasSubstr("expert.0.weight: shape is"));
    EXPECT_THAT(message_of([&] {
                  wrap(sgd, *model, group, quiet({.ignore = {{"expert", "own", "exp"}}}));
                }),
                AllOf(HasSubstr("option ignore names \"exp\""), HasSubstr("allowed are their names")));
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact", .ignore = {{"expert", "own"}}}));
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(before[i], expert->parameters()[i]));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      for (const torch::Tensor& p : expert->parameters()) EXPECT_FALSE(p.grad().defined());
      torch::manual_seed(10 * step + rank.rank);
      const torch::Tensor x = torch::randn({3, 4});
      torch::Tensor loss = model->linear->forward(expert->forward(x)).square().sum() +
                           model->named_parameters()["expertise"].sum() * (rank.rank + 1);
      const auto own = torch::autograd::grad({loss}, expert->parameters(), {}, /*retain_graph=*/true);
      loss.backward();
      for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(torch::equal(own[i], expert->parameters()[i].grad()));
      EXPECT_EQ(model->named_parameters()["expertise"].grad()[0].item<float>(), 1.5F);
      optimizer.step();
      EXPECT_EQ(difference_from_rank0(model->linear->weight, *group), 0);
    }
    EXPECT_FALSE(torch::equal(before[0], expert->parameters()[0])) << "it is trained";
    EXPECT_EQ(model->named_buffers()["own"][0].item<int64_t>(), rank.rank);
    EXPECT_EQ(difference_from_rank0(model->named_parameters()["expertise"], *group), 0) << "no module's";
  });
}

TEST(SharedState, BuffersThatCanNotBeSentAreRefusedByName) {
  run_ranks(1, [](const Rank&) {
    auto group = make_group();
    const auto refusal = [&](const torch::Tensor& buffer) {
      Holder model;
      model->register_buffer("odd", buffer);
      torch::optim::SGD sgd(model->parameters(), 0.1);
      return message_of([&] { wrap(sgd, *model, group, quiet()); });
    };
    EXPECT_THAT(refusal(torch::zeros({3, 3}).to_sparse()), HasSubstr("buffer odd is not a dense tensor"));
    EXPECT_THAT(refusal(torch::zeros({3}).expand({4, 3})), HasSubstr("buffer odd has elements that share memory"));
    EXPECT_THAT(refusal(torch::empty({3}, torch::kMeta)), HasSubstr("buffer odd is on meta"));
    EXPECT_EQ(refusal(torch::zeros({0})), "no error");
    EXPECT_EQ(refusal(torch::zeros({3}, torch::kComplexFloat)), "no error");
  });
}

}  // namespace
}  // namespace gradtune::test
