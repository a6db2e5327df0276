// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests passes other than one backward pass over all parameters before each step(): parameters without gradients or
// elements, guards, several optimizers, wraps in a row, backward inside backward.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "hooks/backward_pass.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct PartlyImpl : torch::nn::Module {
  PartlyImpl() {
    used = register_module("used", torch::nn::Linear(20, 5));
    sometimes = register_module("sometimes", torch::nn::Linear(20, 5));
    empty = register_parameter("empty", torch::zeros({0}));
    never = register_parameter("never", torch::zeros({3}));
  }
  torch::Tensor forward(const torch::Tensor& x, bool both) {
    return both ? used->forward(x) + sometimes->forward(x) : used->forward(x);
  }
  torch::nn::Linear used{nullptr}, sometimes{nullptr};
  torch::Tensor empty, never;
};
TORCH_MODULE(Partly);

// No bucket waits for a parameter without elements, so nothing else may wait for it either. The control word says if
// a rank had all gradients, and it may leave before the pass ends.
TEST(Passes, ParametersWithoutElementsAreLeftAlone) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(1);
    Partly model;
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (int step = 0; step < 600; ++step) {
      optimizer.zero_grad();
      const Data data = make_data(rank.rank, step, 2);
      const bool both = step % 3 == 0 || (step % 3 == 1 && rank.rank == 1);
      torch::nn::functional::cross_entropy(model->forward(data.inputs, both), data.targets).backward();
      ASSERT_FALSE(model->empty.grad().defined());
      ASSERT_FALSE(model->never.grad().defined());
      ASSERT_EQ(model->sometimes->weight.grad().defined(), step % 3 != 2) << step;
      optimizer.step();
    }
    for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
  });
}

TEST(Passes, AModelOfNothingButEmptyParametersTrains) {
  run_ranks(2, [](const Rank&) {
    auto group = make_group();
    torch::nn::ParameterDict model;
    model->insert("empty", torch::zeros({0}, torch::requires_grad()));
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model->get("empty").sum().backward();
      optimizer.step();
    }
    EXPECT_EQ(optimizer.progress().step, 3);
  });
}

TEST(Passes, SeveralOptimizersOfOneModuleAreOneWrap) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    const auto train = [&](bool wrapped) {
      auto model = make_mlp(1);
      const auto all = model->parameters();
      torch::optim::SGD sgd(std::vector<torch::Tensor>(all.begin(), all.begin() + 2),
                            torch::optim::SGDOptions(0.1).momentum(0.9));
      torch::optim::Adam adam(std::vector<torch::Tensor>(all.begin() + 2, all.end()), 1e-3);
      std::optional<Optimizer> optimizer;
      if (wrapped) optimizer = wrap({&sgd, &adam}, *model, group, quiet({.fidelity = "exact"}));
      for (int step = 0; step < 8; ++step) {
        if (wrapped) {
          optimizer->zero_grad();
          loss_of(model, make_data(rank.rank, step)).backward();
          optimizer->step();
          continue;
        }
        sgd.zero_grad();
        adam.zero_grad();
        for (int r = 0; r < rank.size; ++r) (loss_of(model, make_data(r, step)) / rank.size).backward();
        sgd.step();
        adam.step();
      }
      if (wrapped) {
        EXPECT_EQ(&optimizer->inner(), &sgd);
        EXPECT_EQ(&optimizer->inner(1), &adam);
        EXPECT_THAT(message_of([&] { optimizer->inner(2); }), HasSubstr("there is no optimizer 2"));
        torch::serialize::OutputArchive saved;
        optimizer->save(saved);
        std::stringstream stream;
        saved.save_to(stream);
        torch::serialize::InputArchive restored;
        restored.load_from(stream);
        optimizer->load(restored);
      }
      return torch::nn::utils::parameters_to_vector(model->parameters()).detach();
    };
    EXPECT_LE((train(true) - train(false)).abs().max().item<double>(), 2e-6);
  });
}

TEST(Passes, AnotherWrapOfAModelThatHasOneIsRefused) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    const auto all = model->parameters();
    torch::optim::SGD first(std::vector<torch::Tensor>(all.begin(), all.begin() + 2), 0.1);
    torch::optim::SGD second(std::vector<torch::Tensor>(all.begin() + 2, all.end()), 0.1);
    {
      auto optimizer = wrap(first, *model, group, quiet());
      EXPECT_THAT(message_of([&] { wrap(second, *model, group, quiet()); }),
                  AllOf(HasSubstr("belongs to another wrapped optimizer that still lives"),
                        HasSubstr("belong into one call of wrap, as a list")));
      EXPECT_THAT(message_of([&] { wrap({&first, &first}, *model, group, quiet()); }), HasSubstr("in the list twice"));
      EXPECT_THAT(message_of([&] { wrap(std::vector<torch::optim::Optimizer*>(), *model, group, quiet()); }),
                  HasSubstr("at least one optimizer"));
      loss_of(model, make_data(rank.rank, 0)).backward();
      optimizer.step();
      EXPECT_EQ(difference_from_rank0(all[0].grad(), *group), 0) << "the first wrap goes on";
    }
    EXPECT_EQ(message_of([&] { wrap(second, *model, group, quiet()); }), "no error") << "the other one is gone";
  });
}

// The new wrap exists before the old one is gone.
TEST(Passes, WrappingTheSameOptimizerAgainEndsTheOldWrap) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (int step = 0; step < 6; ++step) {
      if (step % 2 == 1) optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
    }
    auto twin = make_mlp(1);
    torch::optim::SGD plain(twin->parameters(), 0.1);
    for (int step = 0; step < 6; ++step) {
      plain.zero_grad();
      for (int r = 0; r < rank.size; ++r) (loss_of(twin, make_data(r, step)) / rank.size).backward();
      plain.step();
    }
    for (size_t p = 0; p < twin->parameters().size(); ++p) {
      EXPECT_LE((twin->parameters()[p] - model->parameters()[p]).abs().max().item<double>(), 1e-6);
    }
    auto newer = wrap(sgd, *model, group, quiet());
    EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("was wrapped again since, and this wrap has ended"));
    Optimizer moved = std::move(newer);
    EXPECT_THAT(message_of([&] { newer.step(); }), HasSubstr("was moved from"));
    moved.step();
  });
}

TEST(Passes, AGuardMayBeHeldOrNot) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      for (int micro = 0; micro < 3; ++micro) {
        std::optional<Optimizer::NoSync> guard;
        if (micro < 2) guard = optimizer.no_sync();
        auto held = guard ? std::make_unique<Optimizer::NoSync>(std::move(*guard)) : nullptr;
        loss_of(model, make_data(rank.rank, 3 * step + micro)).backward();
        if (micro < 2) {
          EXPECT_NE(difference_from_rank0(model->parameters()[0].grad(), *group), rank.rank == 0 ? -1 : 0);
        }
      }
      for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p.grad(), *group), 0);
      optimizer.step();
    }
    std::optional<Optimizer::NoSync> longer(optimizer.no_sync());
    { Optimizer gone = std::move(optimizer); }
    longer.reset();  // after the wrap
  });
}

// One variable for all wraps of a process: each has its own journal, and finds its own strategy among several.
TEST(Passes, TwoModelsInOneProcessShareVariables) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl"), of_second = folder.path("journal.2.jsonl");
  const std::string wide = folder.path("wide.json"), narrow = folder.path("narrow.json");
  run_ranks(2, [&](const Rank& rank) {
    auto group = make_group();
    const auto train = [&](const std::string& strategy) {
      auto first = make_mlp(1), second = make_mlp(1, /*width=*/32);
      torch::optim::SGD first_sgd(first->parameters(), 0.1), second_sgd(second->parameters(), 0.1);
      const Options options = quiet(strategy.empty() ? Options() : Options{.strategy = strategy, .tuning_budget = 0});
      auto one = wrap(first_sgd, *first, group, options), two = wrap(second_sgd, *second, group, options);
      for (int step = 0; step < 6; ++step) {
        for (auto* optimizer : {&one, &two}) {
          optimizer->zero_grad();
          loss_of(optimizer == &one ? first : second, make_data(rank.rank, step)).backward();
          optimizer->step();
        }
      }
      one.export_strategy(wide);
      two.export_strategy(narrow);
    };
    setenv("GRADTUNE_JOURNAL", journal.c_str(), 1);
    train("");
    unsetenv("GRADTUNE_JOURNAL");
    group->barrier()->wait();
    train(wide + "," + narrow);
    auto other = make_mlp(1, /*width=*/16);
    torch::optim::SGD sgd(other->parameters(), 0.1);
    EXPECT_THAT(message_of([&] { wrap(sgd, *other, group, quiet({.strategy = wide + "," + narrow})); }),
                AllOf(HasSubstr("no file of"), HasSubstr(wide), HasSubstr("model")));
  });
  for (const std::string& each : {journal, of_second}) {
    const auto read = tuner::read_journal(each);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_GE(read.value().reports.size(), 4U);
  }
}

// Repeats a function's forward and runs its backward inside its own backward, as checkpointing that saves memory
// does.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               torch::nn::Linear* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    const torch::NoGradGuard no_grad;
    return torch::tanh((*layer)->forward(x));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* const layer = reinterpret_cast<torch::nn::Linear*>(context->saved_data["layer"].toInt());
    const torch::AutoGradMode enable(true);
    torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::tanh((*layer)->forward(x)).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

// One exchange per step, wherever the last gradient comes in the passes, and also if some parameter gets none.
TEST(Passes, BackwardInsideBackwardIsOneExchange) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    for (const bool with_unused : {false, true}) {
      torch::manual_seed(1);
      std::vector<torch::nn::Linear> layers;
      torch::nn::ModuleList model;
      for (int i = 0; i < 4; ++i) {
        layers.emplace_back(20, 20);
        model->push_back(layers.back());
      }
      if (with_unused) model->push_back(torch::nn::Linear(3, 3));
      torch::optim::SGD sgd(model->parameters(), 0.1);
      auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        std::vector<torch::Tensor> expected;
        for (int r = 0; r < rank.size; ++r) {
          torch::Tensor x = make_data(r, step).inputs;
          for (auto& layer : layers) x = torch::tanh(layer->forward(x));
          const auto own = torch::autograd::grad({x.square().sum()}, [&] {
            std::vector<torch::Tensor> of;
            for (auto& layer : layers) of.insert(of.end(), {layer->weight, layer->bias});
            return of;
          }());
          for (size_t i = 0; i < own.size(); ++i) {
            r == 0 ? expected.push_back(own[i] / rank.size) : void(expected[i] += own[i] / rank.size);
          }
        }
        torch::Tensor x = make_data(rank.rank, step).inputs.requires_grad_();
        for (auto& layer : layers) x = Checkpointed::apply(x, &layer);
        const int64_t before = optimizer.progress().step;
        x.square().sum().backward();
        for (size_t i = 0; i < layers.size(); ++i) {
          EXPECT_LE((layers[i]->weight.grad() - expected[2 * i]).abs().max().item<double>(), 1e-5) << step;
          EXPECT_EQ(difference_from_rank0(layers[i]->weight.grad(), *group), 0);
        }
        optimizer.step();
        EXPECT_EQ(optimizer.progress().step, before + 1);
      }
    }
  });
}

TEST(Passes, ASparseGradientStaysOne) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    torch::manual_seed(1);
    torch::nn::Embedding model(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    model->forward(torch::tensor({rank.rank, 2})).sum().backward();
    const torch::Tensor average = model->weight.grad();
    ASSERT_TRUE(average.is_sparse() && average.is_coalesced());
    EXPECT_TRUE(torch::equal(average.indices(), torch::tensor({{0, 1, 2}})));
    EXPECT_TRUE(torch::equal(average.values(), torch::tensor({0.5F, 0.5F, 1.0F}).unsqueeze(1).expand({3, 4})));
  });
}

// Autograd leaves the imaginary part of a conjugate as a view that changes the sign when it is read.
TEST(Passes, AGradientThatIsNegatedWhenReadKeepsItsSign) {
  struct Complex final : torch::nn::Module {
    Complex() {
      real = register_parameter("real", torch::tensor(2.0F));
      imaginary = register_parameter("imaginary", torch::tensor(3.0F));
    }
    torch::Tensor loss(float factor) const {
      return torch::real(torch::complex(real, imaginary).conj() *
                         torch::complex(torch::tensor(1.0F), torch::tensor(factor)));
    }
    torch::Tensor real, imaginary;
  };
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();
    Complex alone, model;
    alone.loss(2).backward();
    ASSERT_TRUE(alone.imaginary.grad().is_neg());
    torch::optim::SGD sgd(model.parameters(), 0.1);
    auto optimizer = wrap(sgd, model, group, quiet({.fidelity = "exact"}));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model.loss(static_cast<float>(2 + rank.rank)).backward();
      EXPECT_EQ(model.real.grad().item<float>(), 1);
      EXPECT_EQ(model.imaginary.grad().item<float>(), 2.5F);
      optimizer.step();
    }
  });
}

TEST(Passes, ParametersInOneStorageThatDoNotOverlapTrain) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    torch::nn::ParameterDict model;
    torch::Tensor all = torch::ones({10});
    model->insert("a", all.narrow(0, 0, 4).detach().requires_grad_());
    model->insert("b", all.narrow(0, 4, 6).detach().requires_grad_());
    torch::optim::SGD sgd(model->parameters(), 0.5);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact"}));
    optimizer.zero_grad();
    ((rank.rank + 1) * (model->get("a").sum() + 2 * model->get("b").sum())).backward();
    optimizer.step();
    EXPECT_TRUE((all.narrow(0, 0, 4) == 1 - 0.5 * 1.5).all().item<bool>());
    EXPECT_TRUE((all.narrow(0, 4, 6) == 1 - 0.5 * 3).all().item<bool>());
    torch::nn::ParameterDict overlapping;
    overlapping->insert("a", all.narrow(0, 0, 5).detach().requires_grad_());
    overlapping->insert("b", all.narrow(0, 4, 6).detach().requires_grad_());
    torch::optim::SGD other(overlapping->parameters(), 0.5);
    EXPECT_THAT(message_of([&] { wrap(other, *overlapping, group, quiet()); }),
                AllOf(HasSubstr("shares memory with"), HasSubstr("parameter b")));
  });
}

TEST(Passes, AGroupWithoutAStoreIsRefused) {
  run_ranks(1, [](const Rank&) {
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.5);
    EXPECT_THAT(message_of([&] { wrap(sgd, *model, c10::make_intrusive<c10d::ProcessGroup>(0, 1), quiet()); }),
                HasSubstr("the process group has no store"));
    EXPECT_THAT(message_of([&] { wrap(sgd, *model, {}, quiet()); }), HasSubstr("wrap needs a process group"));
  });
}

TEST(Passes, AForkedChildEndsWithoutHarm) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = std::make_unique<Optimizer>(wrap(sgd, *model, group, quiet()));
    const pid_t child = fork();
    if (child == 0) {
      optimizer.reset();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer->step();
    }
  });
}

// At fidelity exact, Inf and NaN reach the same places as with DDP.
TEST(Passes, NonFiniteGradientsStayInTheirTensor) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    torch::nn::ParameterDict model;
    model->insert("w", torch::ones({3}, torch::requires_grad()));
    model->insert("v", torch::ones({3}, torch::requires_grad()));
    torch::optim::SGD sgd(model->parameters(), 1.0);
    auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "exact", .tuning_budget = 0}));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      torch::Tensor w = model->get("w");
      const float large = step == 1 && rank.rank == 0 ? std::numeric_limits<float>::infinity() : 1.0F;
      ((w * torch::tensor({1.0F, large, 1.0F})).sum() + model->get("v").sum()).backward();
      if (step == 1) {
        EXPECT_TRUE(std::isinf(w.grad()[1].item<float>()));
        EXPECT_EQ(w.grad()[0].item<float>(), 1.0F);
        EXPECT_TRUE((model->get("v").grad() == 1).all().item<bool>());
      }
      torch::nn::utils::clip_grad_value_(model->parameters(), 1);
      optimizer.step();
    }
    EXPECT_EQ(optimizer.progress().nonfinite_steps, 1);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(model->get("w")[i].item<float>(), -2.0F);
  });
}

TEST(BackwardPass, IsCountedOnceAPass) {
  BackwardPass pass;
  pass.set_tensors(2);
  EXPECT_EQ(pass.state(), BackwardPass::State::none);
  pass.begin();
  EXPECT_TRUE(pass.ready(1));
  EXPECT_FALSE(pass.ready(1));
  EXPECT_FALSE(pass.is_whole());
  EXPECT_TRUE(pass.ready(0));
  EXPECT_TRUE(pass.is_whole());
  EXPECT_THAT(std::vector<int32_t>(pass.order().begin(), pass.order().end()), testing::ElementsAre(1, 0));
  pass.end();
  EXPECT_EQ(pass.state(), BackwardPass::State::averaged);
  pass.begin();
  EXPECT_FALSE(pass.is_ready(0));
}

}  // namespace
}  // namespace gradtune::test
