// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// An update in parts gives the bits of a whole one, with the options that were in force when it began.
#include "hooks/stepper.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "hooks/module_model.h"
#include "hooks/optim_stepper.h"

namespace gradtune {
namespace {

using namespace torch::optim;
using testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;
using Groups = std::vector<OptimizerParamGroup>;

// Two groups, the second with its own options.
struct Kind {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(Groups)> make;
  std::function<void(OptimizerOptions&)> change;  // a change that a scheduler may make
  const char* momentum;
};

template <typename Optim, typename Options>
Kind kind(const char* name, const Options& options, const char* momentum) {
  return {name, [options](Groups groups) { return std::make_unique<Optim>(std::move(groups), options); },
          [](OptimizerOptions& of) {
            auto& own = dynamic_cast<Options&>(of);
            own.lr(own.lr() / 2).weight_decay(own.weight_decay() + 0.05);
          },
          momentum};
}

std::vector<Kind> kinds() {
  return {
      kind<SGD>("SGD", SGDOptions(0.1), ""),
      kind<SGD>("SGD with momentum", SGDOptions(0.1).momentum(0.9).dampening(0.1), "momentum 0.9"),
      kind<SGD>("SGD with nesterov", SGDOptions(0.1).momentum(0.5).nesterov(true), "momentum 0.5"),
      kind<SGD>("SGD with weight decay", SGDOptions(0.1).momentum(0.9).weight_decay(0.01), "momentum 0.9"),
      kind<Adam>("Adam", AdamOptions(0.01), "beta1 0.9"),
      kind<Adam>("Adam with amsgrad", AdamOptions(0.01).amsgrad(true).weight_decay(0.01), "beta1 0.9"),
      kind<AdamW>("AdamW", AdamWOptions(0.01).weight_decay(0.1), "beta1 0.9"),
      kind<RMSprop>("RMSprop", RMSpropOptions(0.01).weight_decay(0.01), ""),
      kind<RMSprop>("RMSprop centered", RMSpropOptions(0.01).centered(true).momentum(0.9), "momentum 0.9"),
      kind<Adagrad>("Adagrad", AdagradOptions(0.1).lr_decay(0.1), ""),
      kind<Adagrad>("Adagrad with weight decay", AdagradOptions(0.1).weight_decay(0.01), ""),
  };
}

// Two optimizers of two groups each, over the same values in every job.
struct Job {
  explicit Job(const Kind& of) : kind(of) {
    torch::manual_seed(7);
    for (int p = 0; p < 8; ++p) parameters.push_back(torch::randn({3, 5 + p}).requires_grad_());
    for (int i = 0; i < 2; ++i) {
      const auto at = parameters.begin() + 4 * i;
      optimizers.push_back(
          kind.make({OptimizerParamGroup(Tensors{at[0], at[1]}), OptimizerParamGroup({at[2], at[3]})}));
      kind.change(optimizers.back()->param_groups()[1].options());
    }
    stepper = std::make_unique<OptimStepper>(std::vector<Optimizer*>{optimizers[0].get(), optimizers[1].get()});
  }

  // One parameter has no gradient in some steps, as if it was not used.
  void set_gradients(int step) {
    for (size_t p = 0; p < parameters.size(); ++p) {
      torch::manual_seed(100 * step + static_cast<int>(p));
      parameters[p].mutable_grad() = p == 5 && step % 2 == 0 ? torch::Tensor() : torch::randn_like(parameters[p]);
    }
  }
  void schedule() {
    for (const auto& optimizer : optimizers) {
      for (auto& group : optimizer->param_groups()) kind.change(group.options());
    }
  }

  const Kind& kind;
  Tensors parameters;
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  std::unique_ptr<OptimStepper> stepper;
};

void expect_same_bits(const Job& job, const Job& other) {
  for (size_t p = 0; p < job.parameters.size(); ++p) {
    EXPECT_TRUE(torch::equal(job.parameters[p], other.parameters[p])) << p;
  }
}

TEST(Stepper, AStepInPartsComesToTheSameBits) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    Job whole(kind), parts(kind);
    EXPECT_TRUE(parts.stepper->can_be_split(false).ok());
    const Tensors& all = parts.parameters;
    const Tensors early{all[6], all[0], all[3]}, late{all[5], all[1]}, later{all[7], all[2], all[4]};
    for (int step = 0; step < 4; ++step) {
      for (Job* job : {&whole, &parts}) job->set_gradients(step);
      whole.stepper->step();
      parts.stepper->step_part(early, nullptr);
      EXPECT_TRUE(torch::equal(parts.parameters[0], whole.parameters[0]));
      EXPECT_FALSE(torch::equal(parts.parameters[1], whole.parameters[1])) << "its part is still to come";
      parts.stepper->step_part(late, nullptr);
      parts.stepper->step_part(later, nullptr);
      expect_same_bits(parts, whole);
    }
  }
}

TEST(Stepper, ALatePartIsSteppedWithTheOptionsOfItsStep) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    Job whole(kind), parts(kind);
    const Tensors& all = parts.parameters;
    const Tensors early{all[0], all[2], all[4], all[6]}, late{all[3], all[1]}, later{all[7], all[5]};
    for (int step = 0; step < 4; ++step) {
      for (Job* job : {&whole, &parts}) job->set_gradients(step);
      whole.stepper->step();
      whole.schedule();
      const auto options = parts.stepper->options();
      parts.stepper->step_part(early, nullptr);
      parts.schedule();
      parts.stepper->step_part(late, options.get());
      parts.stepper->step_part(later, options.get());
      expect_same_bits(parts, whole);
      for (size_t i = 0; i < 2; ++i) {
        for (size_t g = 0; g < 2; ++g) {
          const auto lr = [&](Job& job) { return job.optimizers[i]->param_groups()[g].options().get_lr(); };
          EXPECT_EQ(lr(parts), lr(whole)) << "as the scheduler left it";
        }
      }
    }
  }
}

// Users and schedulers hold references to options and lists.
TEST(Stepper, APartLeavesTheGroupsAsTheyAre) {
  const Kind kind = kinds()[4];
  Job job(kind);
  job.set_gradients(1);
  auto& group = job.optimizers[0]->param_groups()[0];
  const OptimizerOptions* const options = &group.options();
  const auto kept = job.stepper->options();
  job.stepper->step_part(Tensors{job.parameters[0], torch::zeros({2})}, kept.get());
  EXPECT_EQ(&group.options(), options);
  EXPECT_TRUE(job.stepper->check_unchanged().ok());
  EXPECT_TRUE(job.parameters[1].grad().defined());
  job.parameters[1].mutable_grad() = torch::rand({3, 6}).to_sparse();  // Adam refuses it
  EXPECT_THROW(job.stepper->step_part(Tensors{job.parameters[1]}, kept.get()), c10::Error);
  EXPECT_EQ(&group.options(), options);
  EXPECT_TRUE(job.stepper->check_unchanged().ok());
  EXPECT_THROW(job.stepper->step_part(Tensors{}, std::make_unique<Stepper::GroupOptions>().get()), core::ProgramError);
}

TEST(Stepper, GroupsSayWhatTheyAre) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const Tensors parameters{torch::zeros({4, 2}), torch::zeros({3})};
    const auto one = kind.make({OptimizerParamGroup(Tensors{parameters[0]})});
    const auto two = kind.make({OptimizerParamGroup(Tensors{}), OptimizerParamGroup(Tensors{parameters[1]})});
    const OptimStepper stepper({one.get(), two.get()});
    const auto groups = stepper.groups();
    ASSERT_EQ(groups.size(), 3U);
    EXPECT_EQ(groups[0].name, "0, group 0");
    EXPECT_EQ(groups[2].name, "1, group 1");
    EXPECT_TRUE(groups[2].parameters.at(0).is_same(parameters[1]));
    EXPECT_EQ(groups[0].momentum, kind.momentum);
    const bool is_sgd = std::string(kind.name).starts_with("SGD");
    EXPECT_EQ(groups[0].takes, is_sgd && !groups[0].momentum.empty() ? Stepper::Takes::as_before : Stepper::Takes::any);
    EXPECT_EQ(groups[0].family, is_sgd ? core::OptimizerFamily::sgd : core::OptimizerFamily::adaptive) << kind.name;
  }
}

// For several optimizers, the list that tolerates less; a class derived from SGD may divide gradients by anything.
TEST(Stepper, TheFamilyIsSgdWhereAllAre) {
  struct Derived : torch::optim::SGD {
    using SGD::SGD;
  };
  const auto parameters = [] { return std::vector<torch::Tensor>{torch::zeros({2}, torch::requires_grad())}; };
  torch::optim::SGD a(parameters(), 0.1), b(parameters(), 0.2);
  torch::optim::Adam adam(parameters());
  Derived derived(parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_EQ(family_of(OptimStepper({&a, &b})), core::OptimizerFamily::sgd);
  EXPECT_EQ(family_of(OptimStepper({&a, &adam})), core::OptimizerFamily::adaptive);
  EXPECT_EQ(family_of(OptimStepper({&derived})), core::OptimizerFamily::adaptive);
}

struct OwnSgd : SGD {
  using SGD::SGD;
};

TEST(Stepper, WhatCanNotBeSplitSaysWhy) {
  const Tensors parameters{torch::zeros({3})};
  SGD sgd(parameters, 0.1);
  EXPECT_TRUE(can_be_split(sgd).ok());
  EXPECT_THAT(OptimStepper({&sgd}).can_be_split(/*has_closure=*/true).error().message,
              HasSubstr("the closure evaluates the loss"));
  LBFGS lbfgs(parameters);
  EXPECT_THAT(can_be_split(lbfgs).error().message, HasSubstr("LBFGS takes all parameters as one vector"));
  OwnSgd own({torch::zeros({3})}, 0.1);
  EXPECT_THAT(OptimStepper({&sgd, &own}).can_be_split(false).error().message, HasSubstr("class is not known"));
  EXPECT_THROW(OptimStepper({&lbfgs}), core::Exception);
}

TEST(Stepper, ParametersAreTheModelsAndEachOnce) {
  torch::nn::Linear linear(2, 2);
  const ModuleModel model(*linear, true);
  const torch::Tensor other = torch::zeros({7}).requires_grad_(), frozen = torch::zeros({7});
  const auto refusal = [&](const Tensors& one, const Tensors& two) {
    SGD a(one, 0.1), b(two, 0.1);
    try {
      check_parameters(OptimStepper({&a, &b}), model);
    } catch (const core::Exception& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(refusal({linear->weight}, {linear->bias, frozen}), "none");
  EXPECT_THAT(refusal({linear->weight}, {linear->weight}), HasSubstr("of shape [2, 2] is in the optimizer twice"));
  EXPECT_THAT(refusal({linear->weight}, {other}), HasSubstr("of shape [7] that is not in the module"));
}

// The state after steps in parts is that of whole steps, and can be loaded.
TEST(Stepper, StateIsSavedAndLoaded) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    Job whole(kind), parts(kind);
    const auto step_parts = [&] {
      parts.stepper->step_part(std::span(parts.parameters).first(3), nullptr);
      parts.stepper->step_part(std::span(parts.parameters).subspan(3), nullptr);
    };
    for (Job* job : {&whole, &parts}) job->set_gradients(1);
    whole.stepper->step();
    step_parts();
    torch::serialize::OutputArchive saved;
    parts.stepper->save(saved);
    std::stringstream stream;
    saved.save_to(stream);
    torch::serialize::InputArchive loaded;
    loaded.load_from(stream);
    Job again(kind);
    again.stepper->load(loaded);
    {
      const torch::NoGradGuard no_grad;
      for (size_t p = 0; p < 8; ++p) again.parameters[p].copy_(parts.parameters[p]);
    }
    for (Job* job : {&whole, &again}) {
      job->set_gradients(3);
      job->stepper->step();
    }
    expect_same_bits(again, whole);
  }
}

}  // namespace
}  // namespace gradtune
