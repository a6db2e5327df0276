// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/phase.h"

namespace gradtune::tuner {

bool is_importing(const Phase& phase) {
  using Before = Observing::Before;
  if (const auto* observing = std::get_if<Observing>(&phase)) {
    return observing->before() == Before::opening || observing->before() == Before::imported;
  }
  if (const auto* racing = std::get_if<Racing>(&phase)) return racing->among() == Racing::Among::imported;
  const auto* confirming = std::get_if<Confirming>(&phase);
  return confirming != nullptr && confirming->origin() == Confirming::Origin::imported;
}

Stage stage_of(const Phase& phase) {
  if (std::holds_alternative<Confirming>(phase)) return Stage::confirm;
  if (is_importing(phase)) return Stage::imported;
  if (std::holds_alternative<Observing>(phase)) return Stage::observe;
  if (std::holds_alternative<Searching>(phase)) return Stage::partition;
  if (std::holds_alternative<Racing>(phase)) return Stage::race;
  return std::holds_alternative<Watching>(phase) ? Stage::watch : Stage::audit;
}

}  // namespace gradtune::tuner
