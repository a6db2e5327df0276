// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/result_text.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "tuner/decision_words.h"

namespace gradtune {
namespace {

using nlohmann::json;

// Calls use(name, member) for each member, so that the writer and the reader use the same list.
template <typename Result, typename Use>
void for_each_member(Result& result, const Use& use) {
  use("decided", result.decided);
  use("committed", result.committed);
  use("baseline_ms", result.baseline_ms);
  use("committed_ms", result.committed_ms);
  use("predicted_ms", result.predicted_ms);
  use("gain", result.gain);
  use("gain_low", result.gain_low);
  use("gain_high", result.gain_high);
  use("steps", result.steps);
  use("cost_ms", result.cost_ms);
  use("cost_share", result.cost_share);
  use("first_commit", result.first_commit);
  use("story", result.story);
  use("strategy", result.strategy);
  use("description", result.description);
  use("fidelity", result.fidelity);
}

template <typename Value>
void read(const json& from, Value& into) {
  into = from.get<Value>();
}
template <typename Value>
void read(const json& from, std::optional<Value>& into) {
  if (!from.is_null()) into = from.get<Value>();
}

}  // namespace

Optimizer::Result result_of(const tuner::Standing& standing, core::Fidelity fidelity) {
  const tuner::Comparison& claim = standing.comparison;
  Optimizer::Result result;
  result.decided = standing.is_decided();
  result.committed = standing.state == tuner::Standing::State::committed;
  result.baseline_ms = claim.baseline_ms;
  if (result.committed) result.committed_ms = claim.committed_ms;
  result.gain = claim.gain;
  result.gain_low = claim.gain_low;
  result.gain_high = claim.gain_high;
  result.steps = standing.tuning_steps;
  result.cost_ms = standing.tuning_cost_ms;
  result.cost_share = tuner::cost_share(standing.tuning_cost_ms, claim.baseline_ms);
  result.first_commit = standing.first_commit;
  result.story = tuner::in_words(standing);
  result.strategy = standing.label;
  result.fidelity = core::to_string(fidelity);
  return result;
}

Optimizer::Result result_of(const tuner::Driver& driver) {
  const policies::Candidate& chosen = driver.chosen();
  Optimizer::Result result = result_of(driver.standing(), driver.job().fidelity);
  result.predicted_ms = driver.outcome().predicted_ms;
  result.strategy = chosen.label;
  result.description = core::describe(chosen.strategy, driver.job().table);
  return result;
}

// Names may hold bytes that are not UTF-8, which JSON cannot contain.
std::string to_text(const Optimizer::Result& result) {
  json text = json::object();
  for_each_member(result, [&](const char* name, const auto& member) {
    if constexpr (requires { member.has_value(); }) {
      text[name] = member ? json(*member) : json(nullptr);
    } else {
      text[name] = member;
    }
  });
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

core::Result<Optimizer::Result> parse_result(const std::string& text) {
  Optimizer::Result result;
  try {
    const json parsed = json::parse(text);
    for_each_member(result, [&](const char* name, auto& member) { read(parsed.at(name), member); });
  } catch (const json::exception& error) {
    return core::Error{core::Error::Code::corrupt,
                       std::string("the result that rank 0 sent can not be read: ") + error.what()};
  }
  return result;
}

}  // namespace gradtune
