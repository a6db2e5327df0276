// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The properties of every random job. Each check throws Wrong with its finding.
#pragma once

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/hooks/fuzz/plain_training.h"

namespace gradtune::test {

class Wrong : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Training itself has diverged, equally on all ranks: there is nothing left to compare.
class Diverged : public std::runtime_error {
 public:
  Diverged() : std::runtime_error("training diverged") {}
};

// The largest distance of gradients from the average, by fidelity:
// - exact: sums in the gradient's own dtype: 2e-6 of the mean magnitude of the averaged values, and for 16-bit
//   gradients ranks + 1 roundings
// - half: in addition as many roundings to bfloat16, or to float16, which has no numbers below 2^-24
void check_gradients(const std::vector<Average>& averages, const std::vector<torch::Tensor>& parameters, int ranks,
                     core::Fidelity fidelity);

// Lossy gradients are finite and, over all parameters, at most 50 times the largest ones averaged so far.
class LossyCheck {
 public:
  explicit LossyCheck(bool unscaled) : unscaled_(unscaled) {}
  void check(const std::vector<Average>& averages, const std::vector<torch::Tensor>& parameters);

 private:
  const bool unscaled_;
  double largest_ = 0;
};

// Equal bit for bit, with the same ones undefined.
void check_equal(const char* what, const std::vector<torch::Tensor>& found, const std::vector<torch::Tensor>& wanted);

// Equal bit for bit on all ranks. Collective.
void check_alike(const char* what, const std::vector<torch::Tensor>& tensors, c10d::ProcessGroup& group);

// Waits until all ranks have come.
void meet(c10d::ProcessGroup& group);

}  // namespace gradtune::test
