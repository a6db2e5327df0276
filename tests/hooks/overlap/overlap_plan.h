// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Training jobs with late updates, as plain data from one seed: a model, an optimizer, and the user's actions in
// each step. The same numbers always give the same models and batches.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gradtune::test {

struct OverlapStep {
  enum class Zero : uint8_t { wrapped, module, zeros, never };
  enum class Evaluate : uint8_t { no, no_grad, inference };
  Zero zero = Zero::wrapped;
  int passes = 1;  // all but the last one only accumulate
  // Actions between the step before and this one's forward pass.
  Evaluate evaluate = Evaluate::no;
  bool change_rate = false;    // and weight decay, as a scheduler does
  bool edit = false;           // a parameter is changed in place
  bool use_gradients = false;  // uses the gradients of the step before
  bool synchronize = false;    // and reads parameters without an operator
  bool interrupt = false;      // a forward pass that ends with an exception
  bool again = false;          // a second step() with the same gradients or with none
  // Actions between backward and step.
  bool clip = false;
  bool replace = false;  // replaces a gradient by the user's own
  bool skip = false;     // no step
  bool closure = false;
  bool read = false;        // compares parameters afterwards, read by an operator
  bool switches = false;    // another strategy from here on
  bool checkpoint = false;  // saved after it

  bool operator==(const OverlapStep&) const = default;
};

struct OverlapPlan {
  enum class Model : uint8_t { images, transformer, lstm, shared, count };
  enum class Optim : uint8_t { sgd, momentum, adam, adamw, count };
  uint64_t seed = 0;
  Model model = Model::images;
  Optim optim = Optim::sgd;
  bool groups = false;  // two groups of parameters, with their own options
  std::vector<OverlapStep> steps = {};
};

std::string to_text(const OverlapPlan& plan);

// Mostly ordinary steps, and some of the actions above. `all`: includes actions that turn overlap off.
OverlapPlan draw_overlap(uint64_t seed, int steps, bool all);

// A loss of one rank's batch. Parameters are small, and the first forward read is not always the last gradient. The
// kinds are:
// - images: convolutions and linear layers, some of which are not used in every pass, by every rank
// - transformer: embedding and output share a weight; layer norms, attention
// - lstm: embedding, LSTM, linear: a language model
// - shared: one layer is called twice, another one is used in the middle as well, one never
class OverlapModel : public torch::nn::Module {
 public:
  struct Pass {
    int rank = 0, step = 0, index = 0;
  };
  // `throws`: an exception in the middle of it.
  virtual torch::Tensor loss(const Pass& pass, bool throws = false) = 0;
};
std::shared_ptr<OverlapModel> make_overlap_model(const OverlapPlan& plan);

std::unique_ptr<torch::optim::Optimizer> make_overlap_optimizer(const OverlapPlan& plan,
                                                                const std::vector<torch::Tensor>& parameters);

}  // namespace gradtune::test
