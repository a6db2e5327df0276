// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/context.h"

#include <algorithm>

namespace gradtune::tuner {

std::vector<int32_t> Baselines::compared() const {
  std::vector<int32_t> slots = {faster};
  if (rival) slots.push_back(*rival);
  return slots;
}

void SearchRecord::begin(int64_t until_step) {
  horizon = until_step;
  left_out_until.reset();
  is_any_measured = false;
  why_not_prepared.clear();
}

bool SearchRecord::leaves_out(int earliest) {
  if (earliest <= horizon) return false;
  left_out_until = std::min(earliest, left_out_until.value_or(earliest));
  return true;
}

std::string SearchRecord::why_nothing() const {
  if (why_not_prepared.empty()) return "nothing looks faster";
  return (is_any_measured ? "nothing that could be prepared looks faster; what could not: "
                          : "no candidate could be prepared: ") +
         why_not_prepared;
}

void Context::decide(Decision::What what, std::string label, double value) {
  diary.decisions.push_back({diary.step, diary.stage, what, std::move(label), value});
}

int32_t Context::sound_baseline() const { return outcome.baseline_ms > 0 ? baselines.faster : baselines.count - 1; }

int Context::earliest_step_of(int32_t slot) const {
  return earliest_step(options, knowledge.traits, candidate(slot).strategy);
}

void Context::prepare(int32_t slot) {
  slots.prepare(slot, std::max<int64_t>(diary.step + kLead, earliest_step_of(slot)));
}

void Context::switch_to(int32_t slot, Command::Kind kind) {
  schedule.stop(slot);
  at_once = {.kind = kind, .slot = slot, .bytes = 0};
}

}  // namespace gradtune::tuner
