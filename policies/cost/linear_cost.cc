// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/linear_cost.h"

namespace gradtune::policies {
namespace {

class Linear final : public CostModel {
 public:
  explicit Linear(const LinearCost& cost) : cost_(cost), options_{core::plain_all_reduce()} {}

  std::span<const core::Option> options() const override { return options_; }
  std::optional<size_t> on_host(size_t) const override { return {}; }
  bool loses(size_t) const override { return false; }
  Work work(size_t, int64_t numel, core::DType) const override {
    return {0, 0, cost_.message_us + cost_.element_us * static_cast<double>(numel), 0};
  }

 private:
  const LinearCost cost_;
  const std::vector<core::Option> options_;
};

}  // namespace

std::unique_ptr<CostModel> make_linear_cost(const LinearCost& cost) { return std::make_unique<Linear>(cost); }

CostTable linear_table(const LinearCost& cost) {
  // Between two ranks an all_reduce is two messages, and each sends all 4 bytes of an element once in each
  // direction.
  CostTable table{.ranks = {.size = 2}};
  table.collectives.push_back(
      {core::Step::Kind::all_reduce, core::Level::flat, cost.message_us / 2, cost.element_us / 4});
  return table;
}

}  // namespace gradtune::policies
