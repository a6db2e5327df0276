// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The outer step of training in rounds. The anchors are the parameters that all ranks had when the round began. The
// mean over ranks of (anchor - parameter) is a gradient of the anchors, with which SGD with Nesterov momentum updates
// them (Douillard et al., DiLoCo, 2023, algorithm 1). Every rank then goes on from the new anchors.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <vector>

namespace gradtune {

// Throws unless there is one for each parameter, of its shape.
void check_momenta(std::span<const torch::Tensor> momenta, const std::vector<torch::Tensor>& parameters);

class OuterStep {
 public:
  struct Rates {
    double lr = 0.8, momentum = 0.3;
  };

  // The parameters are the anchors at first. Anchors and momenta have the dtype of the parameters, but at least fp32.
  OuterStep(std::vector<torch::Tensor> parameters, const Rates& rates);

  const std::vector<torch::Tensor>& parameters() const { return parameters_; }

  // anchor - parameter, with the parameter's shape and dtype, laid out like its gradient.
  torch::Tensor change(size_t parameter) const;

  // The program changes the parameters further until step(), which then adds these changes to the new anchors. Without
  // this call, parameters must not change between change() and step().
  void keep_going();

  enum class Outcome : uint8_t { stepped, lost, lost_here };
  // Takes the mean changes of all parameters, and sets the parameters to the new anchors. If a change is not finite, it
  // goes back to the old ones, as all ranks do, and the outcome says if this rank's own parameters were not finite.
  // `is_late`: no rank made updates, and residuals of compression are all that the changes have. They are added to the
  // step before, so that nothing happens if there are none.
  Outcome step(const std::vector<torch::Tensor>& mean_changes, bool is_late = false);
  // Sets the parameters to the anchors: the updates since are lost.
  void go_back();

  // The state between rounds, the same on all ranks. A checkpoint of the parameters has the anchors.
  const std::vector<torch::Tensor>& momenta() const { return momenta_; }
  // The anchors are the current parameters then. Throws as check_momenta() does.
  void restore(std::span<const torch::Tensor> momenta);

 private:
  const std::vector<torch::Tensor> parameters_;
  const Rates rates_;
  std::vector<torch::Tensor> anchors_, momenta_;
  std::vector<torch::Tensor> exchanged_;  // the parameters at keep_going(), until step()
};

}  // namespace gradtune
