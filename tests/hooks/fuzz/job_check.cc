// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fuzz/job_check.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/core/hash.h"

namespace gradtune::test {
namespace {

struct Tolerance {
  double relative = 0;  // relative to the mean magnitude of the element
  double floor = 0;     // relative to the largest magnitude in the tensor
  double absolute = 0;
};

Tolerance tolerance_of(torch::ScalarType type, int ranks, core::Fidelity fidelity) {
  // Each rank's part is rounded, and so is each sum on the way.
  const int roundings = ranks + 1;
  Tolerance tolerance{.relative = 2e-6, .floor = 2e-6};
  if (type == torch::kBFloat16) tolerance.relative = 0x1p-8 * roundings;
  if (type == torch::kHalf)
    tolerance = {.relative = 0x1p-11 * roundings, .floor = 2e-6, .absolute = 0x1p-25 * roundings};
  if (fidelity >= core::Fidelity::half) {
    tolerance.relative += 0x1p-8 * roundings;
    tolerance.absolute = 0x1p-25 * roundings;  // for float16 on the link, whose numbers end there
  }
  return tolerance;
}

std::string value_text(const torch::Tensor& tensor, int64_t at) {
  return c10::str(tensor.flatten()[at].item<double>());
}

torch::Tensor dense(const torch::Tensor& gradient) { return gradient.defined() ? gradient.to_dense() : gradient; }

void check_gradient(const std::string& name, const Average& average, const torch::Tensor& parameter, int ranks,
                    core::Fidelity fidelity) {
  const torch::Tensor gradient = dense(parameter.grad());
  if (gradient.defined() != average.value.defined()) {
    throw Wrong(name + (gradient.defined() ? " has a gradient, and no rank used it" : " has no gradient"));
  }
  if (!gradient.defined() || gradient.numel() == 0) return;
  const Tolerance tolerance = tolerance_of(gradient.scalar_type(), ranks, fidelity);
  const torch::Tensor allowed =
      average.scale * tolerance.relative + average.scale.max() * tolerance.floor + tolerance.absolute;
  const torch::Tensor excess = ((gradient.to(torch::kDouble) - average.value).abs() - allowed).contiguous();
  const auto at = excess.flatten().argmax().item<int64_t>();
  if (excess.flatten()[at].item<double>() <= 0) return;
  throw Wrong(name + " element " + std::to_string(at) + " is " + value_text(gradient.to(torch::kDouble), at) +
              ", the average is " + value_text(average.value, at) + ", it may differ by " + value_text(allowed, at) +
              "; " + std::to_string((excess > 0).sum().item<int64_t>()) + " of " + std::to_string(gradient.numel()) +
              " elements differ by more");
}

// Row by row, for any memory format.
core::Hasher& add(core::Hasher& hasher, const torch::Tensor& any) {
  const torch::Tensor tensor = dense(any);
  hasher.add(tensor.defined() ? uint64_t{1} : uint64_t{0});
  if (!tensor.defined()) return hasher;
  const torch::Tensor rows = tensor.detach().contiguous();
  hasher.add(std::string_view(static_cast<const char*>(rows.data_ptr()), rows.nbytes()));
  return hasher;
}

std::vector<int64_t> gather(int64_t value, c10d::ProcessGroup& group) {
  torch::Tensor mine = torch::full({1}, value, torch::kLong);
  std::vector<std::vector<torch::Tensor>> all(1);
  for (int rank = 0; rank < group.getSize(); ++rank) all[0].push_back(torch::zeros({1}, torch::kLong));
  std::vector<torch::Tensor> inputs{mine};
  group.allgather(all, inputs)->wait();
  std::vector<int64_t> values;
  for (const torch::Tensor& one : all[0]) values.push_back(one.item<int64_t>());
  return values;
}

}  // namespace

void check_gradients(const std::vector<Average>& averages, const std::vector<torch::Tensor>& parameters, int ranks,
                     core::Fidelity fidelity) {
  for (size_t p = 0; p < parameters.size(); ++p) {
    check_gradient("gradient " + std::to_string(p), averages[p], parameters[p], ranks, fidelity);
  }
}

void LossyCheck::check(const std::vector<Average>& averages, const std::vector<torch::Tensor>& parameters) {
  double given = 0, found = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const torch::Tensor gradient = dense(parameters[p].grad());
    const std::string name = "gradient " + std::to_string(p);
    if (averages[p].scale.defined()) {
      if (!gradient.defined()) throw Wrong(name + " has no gradient");
      given += averages[p].scale.pow(2).sum().item<double>();
    }
    if (gradient.defined()) found += gradient.to(torch::kDouble).pow(2).sum().item<double>();
  }
  largest_ = std::max(largest_, std::sqrt(given));
  if (!std::isfinite(found)) throw Wrong("gradients are not finite");
  if (unscaled_ || std::sqrt(found) <= 50 * largest_) return;
  throw Wrong("gradients have the norm " + std::to_string(std::sqrt(found)) + ", the largest averaged so far was " +
              std::to_string(largest_));
}

void check_equal(const char* what, const std::vector<torch::Tensor>& found, const std::vector<torch::Tensor>& wanted) {
  for (size_t t = 0; t < wanted.size(); ++t) {
    core::Hasher of_found, of_wanted;
    if (add(of_found, found[t]).value() == add(of_wanted, wanted[t]).value()) continue;
    std::string text = what + (" " + std::to_string(t));
    if (!found[t].defined() || !wanted[t].defined()) throw Wrong(text + " is undefined on one side");
    const torch::Tensor difference =
        (found[t].detach().to(torch::kDouble) - wanted[t].detach().to(torch::kDouble)).abs();
    throw Wrong(text + " of shape " + c10::str(found[t].sizes()) +
                " is not that of plain training, largest difference " +
                std::to_string(difference.max().item<double>()));
  }
}

void check_alike(const char* what, const std::vector<torch::Tensor>& tensors, c10d::ProcessGroup& group) {
  core::Hasher all;
  for (const torch::Tensor& tensor : tensors) add(all, tensor);
  const std::vector<int64_t> values = gather(static_cast<int64_t>(all.value()), group);
  if (std::ranges::count(values, values[0]) == std::ssize(values)) return;
  std::string which;  // the first difference
  for (size_t t = 0; t < tensors.size() && which.empty(); ++t) {
    core::Hasher one;
    const std::vector<int64_t> of_one = gather(static_cast<int64_t>(add(one, tensors[t]).value()), group);
    if (std::ranges::count(of_one, of_one[0]) < std::ssize(of_one)) which = std::to_string(t);
  }
  throw Wrong(std::string(what) + " " + which + " differs between ranks");
}

void meet(c10d::ProcessGroup& group) { gather(0, group); }

}  // namespace gradtune::test
