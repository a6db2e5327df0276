// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/policies/brute_force.h"

#include <limits>

namespace gradtune::policies::testing {
namespace {

// The best end among all plans that begin with these messages.
double best_us(const CostModel& model, std::span<const Atom> atoms, std::vector<Message>& begun) {
  const auto size = static_cast<int32_t>(atoms.size());
  const int32_t first = begun.empty() ? 0 : begun.back().last + 1;
  if (first == size) return replay_us(model, atoms, begun);
  double best = std::numeric_limits<double>::infinity();
  for (int32_t last = first; last < size; ++last) {
    if (atoms[static_cast<size_t>(last)].dtype != atoms[static_cast<size_t>(first)].dtype) break;
    for (int32_t option = 0; option < static_cast<int32_t>(model.options().size()); ++option) {
      begun.push_back({first, last, option});
      best = std::min(best, best_us(model, atoms, begun));
      begun.pop_back();
    }
  }
  return best;
}

}  // namespace

double best_us(const CostModel& model, std::span<const Atom> atoms) {
  std::vector<Message> none;
  return best_us(model, atoms, none);
}

}  // namespace gradtune::policies::testing
