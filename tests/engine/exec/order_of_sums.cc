// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/exec/order_of_sums.h"

#include <utility>

namespace gradtune::exec {

Values average_along(const std::vector<int>& mesh, std::vector<Values> gradients) {
  const float share = 1.0F / static_cast<float>(gradients.size());
  std::vector<Values> terms = std::move(gradients);
  for (Values& term : terms) {
    for (float& value : term) value *= share;
  }
  for (const int size : mesh) {
    std::vector<Values> sums;
    for (size_t t = 0; t < terms.size(); ++t) {
      if (t % static_cast<size_t>(size) == 0) sums.emplace_back(terms[t].size());
      for (size_t i = 0; i < terms[t].size(); ++i) sums.back()[i] += terms[t][i];
    }
    terms = std::move(sums);
  }
  return terms.front();
}

}  // namespace gradtune::exec
