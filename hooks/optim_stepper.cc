// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/optim_stepper.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "hooks/refusal.h"

namespace gradtune {
namespace {

core::Error not_in_parts(const std::string& why) { return invalid("a step can not be done in parts: " + why); }

// Calls body(parameter) for each parameter, and body(null) after each group.
template <typename Body>
void for_parameters(const std::vector<torch::optim::Optimizer*>& optimizers, Body body) {
  for (const torch::optim::Optimizer* optimizer : optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      for (const torch::Tensor& parameter : group.params()) body(&parameter);
      body(nullptr);
    }
  }
}

// The properties of LibTorch's own optimizers; other optimizers have none.
struct Known {
  std::string momentum;
  std::vector<std::pair<std::string, std::string>> options;
  core::OptimizerFamily family = core::OptimizerFamily::adaptive;
  Stepper::Takes takes = Stepper::Takes::any;
};

Known known_of(const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options) {
  using namespace torch::optim;
  const auto named = [](const char* name, double value) {
    return value == 0 ? std::string() : std::string(name) + " " + c10::str(value);
  };
  const auto text = [](auto value) { return c10::str(value); };
  if (dynamic_cast<const SGD*>(&optimizer) != nullptr) {
    const auto& of = static_cast<const SGDOptions&>(options);
    // A derived class may treat gradients differently.
    const bool is_sgd = typeid(optimizer) == typeid(SGD);
    return {named("momentum", of.momentum()),
            {{"lr", text(of.lr())},
             {"momentum", text(of.momentum())},
             {"dampening", text(of.dampening())},
             {"weight_decay", text(of.weight_decay())},
             {"nesterov", text(of.nesterov())}},
            is_sgd ? core::OptimizerFamily::sgd : core::OptimizerFamily::adaptive,
            of.momentum() == 0 ? Stepper::Takes::any : Stepper::Takes::as_before};
  }
  if (dynamic_cast<const Adagrad*>(&optimizer) != nullptr) {
    const auto& of = static_cast<const AdagradOptions&>(options);
    return {"",
            {{"lr", text(of.lr())},
             {"lr_decay", text(of.lr_decay())},
             {"weight_decay", text(of.weight_decay())},
             {"eps", text(of.eps())}}};
  }
  if (dynamic_cast<const RMSprop*>(&optimizer) != nullptr) {
    const auto& of = static_cast<const RMSpropOptions&>(options);
    return {named("momentum", of.momentum()),
            {{"lr", text(of.lr())},
             {"alpha", text(of.alpha())},
             {"eps", text(of.eps())},
             {"weight_decay", text(of.weight_decay())},
             {"momentum", text(of.momentum())},
             {"centered", text(of.centered())}}};
  }
  const auto adam = [&](const auto& of) -> Known {
    return {named("beta1", std::get<0>(of.betas())),
            {{"lr", text(of.lr())},
             {"beta1", text(std::get<0>(of.betas()))},
             {"beta2", text(std::get<1>(of.betas()))},
             {"eps", text(of.eps())},
             {"weight_decay", text(of.weight_decay())},
             {"amsgrad", text(of.amsgrad())}}};
  };
  if (dynamic_cast<const Adam*>(&optimizer) != nullptr) return adam(static_cast<const AdamOptions&>(options));
  if (dynamic_cast<const AdamW*>(&optimizer) != nullptr) return adam(static_cast<const AdamWOptions&>(options));
  return {};
}

struct ClonedOptions final : Stepper::GroupOptions {
  std::vector<std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>> of;  // by optimizer and group
};

}  // namespace

core::Status can_be_split(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<const LBFGS*>(&optimizer) != nullptr) {
    return not_in_parts("LBFGS takes all parameters as one vector, and evaluates its closure several times");
  }
  // A class derived from one of these may behave differently.
  for (const std::type_info* known :
       {&typeid(SGD), &typeid(Adam), &typeid(AdamW), &typeid(RMSprop), &typeid(Adagrad)}) {
    if (typeid(optimizer) == *known) return {};
  }
  return not_in_parts(
      "the optimizer's class is not known, and its update of a parameter may depend on the others; allowed are SGD, "
      "Adam, AdamW, RMSprop and Adagrad of LibTorch");
}

OptimStepper::OptimStepper(std::vector<torch::optim::Optimizer*> optimizers) : optimizers_(std::move(optimizers)) {
  if (optimizers_.empty()) refuse("wrap needs at least one optimizer");
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    if (optimizers_[i] == nullptr) refuse("optimizer " + std::to_string(i) + " is null");
    if (std::find(optimizers_.begin(), optimizers_.begin() + static_cast<std::ptrdiff_t>(i), optimizers_[i]) !=
        optimizers_.begin() + static_cast<std::ptrdiff_t>(i)) {
      refuse("optimizer " + std::to_string(i) + " is in the list twice");
    }
    if (dynamic_cast<torch::optim::LBFGS*>(optimizers_[i]) != nullptr) {
      refuse(
          "LBFGS evaluates its closure several times and decides by the loss of one rank; allowed are optimizers that "
          "use the gradients of one backward pass");
    }
    const auto& groups = optimizers_[i]->param_groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const torch::Tensor& parameter : groups[g].params()) places_[parameter.unsafeGetTensorImpl()] = {i, g};
    }
  }
  for_parameters(optimizers_, [&](const torch::Tensor* parameter) {
    parameters_.push_back(parameter == nullptr ? nullptr : parameter->unsafeGetTensorImpl());
  });
}

std::vector<Stepper::Group> OptimStepper::groups() const {
  std::vector<Group> groups;
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    const auto& own = optimizers_[i]->param_groups();
    for (size_t g = 0; g < own.size(); ++g) {
      Known known = known_of(*optimizers_[i], own[g].options());
      groups.push_back({.name = std::to_string(i) + ", group " + std::to_string(g),
                        .parameters = own[g].params(),
                        .momentum = std::move(known.momentum),
                        .family = known.family,
                        .options = std::move(known.options),
                        .takes = known.takes});
    }
  }
  return groups;
}

core::Status OptimStepper::check_unchanged() {
  size_t at = 0;
  const torch::Tensor* other = nullptr;
  bool changed = false;
  for_parameters(optimizers_, [&](const torch::Tensor* parameter) {
    const void* const now = parameter == nullptr ? nullptr : parameter->unsafeGetTensorImpl();
    if (!changed && (at == parameters_.size() || parameters_[at] != now)) {
      changed = true;
      other = parameter;
    }
    ++at;
  });
  if (!changed && at == parameters_.size()) return {};
  return invalid("parameters or groups of the optimizer were added, removed or replaced since wrap" +
                 (other == nullptr ? std::string() : ", first one of shape " + c10::str(other->sizes())) +
                 ": they would differ between ranks; after that, wrap again");
}

void OptimStepper::step() {
  for (torch::optim::Optimizer* optimizer : optimizers_) optimizer->step();
}

core::Status OptimStepper::can_be_split(bool has_closure) const {
  if (has_closure) {
    return not_in_parts(
        "the closure evaluates the loss inside of it, which needs all parameters; allowed is backward(), then a step "
        "without a closure");
  }
  for (const torch::optim::Optimizer* optimizer : optimizers_) {
    if (core::Status can = gradtune::can_be_split(*optimizer); !can) return can;
  }
  return {};
}

std::unique_ptr<const Stepper::GroupOptions> OptimStepper::options() const {
  auto options = std::make_unique<ClonedOptions>();
  for (const torch::optim::Optimizer* optimizer : optimizers_) {
    auto& of = options->of.emplace_back();
    for (const auto& group : optimizer->param_groups()) of.push_back(group.options().clone());
  }
  return options;
}

// While it lives, the groups of one optimizer hold only some of their parameters and, if given, other options. The
// user's group objects are moved aside whole, because schedulers and users may hold references to the options inside
// them.
class OptimStepper::Part {
 public:
  Part(torch::optim::Optimizer& optimizer, std::vector<std::vector<torch::Tensor>> parameters,
       const std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>* options)
      : groups_(optimizer.param_groups()) {
    std::vector<torch::optim::OptimizerParamGroup> few;
    for (size_t g = 0; g < groups_.size(); ++g) {
      few.emplace_back(std::move(parameters[g]), (options == nullptr ? groups_[g].options() : *(*options)[g]).clone());
    }
    aside_.reserve(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      aside_.push_back(std::move(groups_[g]));
      groups_[g] = std::move(few[g]);
    }
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() {
    for (size_t g = 0; g < aside_.size(); ++g) groups_[g] = std::move(aside_[g]);
  }

 private:
  std::vector<torch::optim::OptimizerParamGroup>& groups_;
  std::vector<torch::optim::OptimizerParamGroup> aside_;
};

void OptimStepper::step_part(std::span<const torch::Tensor> parameters, const GroupOptions* options) {
  check_unchanged().value();  // the user's program ran since the step, so a late part must check again
  const auto* const cloned = dynamic_cast<const ClonedOptions*>(options);
  core::check(options == nullptr || (cloned != nullptr && cloned->of.size() == optimizers_.size()),
              "options are those of this stepper");
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    std::vector<std::vector<torch::Tensor>> of_groups(optimizers_[i]->param_groups().size());
    core::check(cloned == nullptr || cloned->of[i].size() == of_groups.size(), "options are those of this stepper");
    bool any = false;
    for (const torch::Tensor& parameter : parameters) {
      const auto place = places_.find(parameter.unsafeGetTensorImpl());
      if (place == places_.end() || place->second.optimizer != i) continue;
      of_groups[place->second.group].push_back(parameter);
      any = true;
    }
    if (!any) continue;
    const Part part(*optimizers_[i], std::move(of_groups), cloned == nullptr ? nullptr : &cloned->of[i]);
    optimizers_[i]->step();
  }
}

void OptimStepper::save(torch::serialize::OutputArchive& archive) const {
  if (optimizers_.size() == 1) return optimizers_.front()->save(archive);
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    torch::serialize::OutputArchive own(archive.compilation_unit());
    optimizers_[i]->save(own);
    archive.write(std::to_string(i), own);
  }
}

void OptimStepper::load(torch::serialize::InputArchive& archive) {
  if (optimizers_.size() == 1) return optimizers_.front()->load(archive);
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    torch::serialize::InputArchive own;
    archive.read(std::to_string(i), own);
    optimizers_[i]->load(own);
  }
}

}  // namespace gradtune
