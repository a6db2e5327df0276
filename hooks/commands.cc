// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/commands.h"

#include <chrono>
#include <ctime>
#include <optional>
#include <utility>

#include "hooks/result_text.h"

namespace gradtune {
namespace {

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

std::optional<tuner::Evidence> evidence_of(const tuner::Outcome& outcome) {
  if (!outcome.committed) return std::nullopt;
  return tuner::Evidence{outcome, outcome.steps, today()};
}

}  // namespace

void Commands::announce(const tuner::Action& action) {
  if (of_.driver->take_news()) of_.results.announce(to_text(result_of(*of_.driver)));
  of_.protocol.announce(action.command, action.candidate ? of_.driver->text_of(action) : of_.results.news());
}

void Commands::carry_out(const tuner::Command& command) {
  const int64_t bytes = of_.protocol.carry_out(command);
  if (bytes == 0) return;
  std::string text = of_.peers.rank() == 0 ? of_.protocol.announced_text() : std::string();
  text.resize(static_cast<size_t>(bytes));
  of_.peers.broadcast(reinterpret_cast<std::byte*>(text.data()), bytes);
  if (command.kind != tuner::Command::Kind::prepare) return of_.results.take(text);
  if (const core::Status prepared = of_.protocol.receive_strategy(text); !prepared) {
    warnings_.once(Warnings::Kind::not_prepared,
                   "a strategy could not be prepared, and is not tried: " + prepared.error().message);
  }
}

std::string Commands::strategy_text(const policies::Candidate& candidate, bool evidence) const {
  tuner::StrategyFile file = tuner::strategy_file(of_.gradients.table(), of_.peers.size(), of_.settings.fidelity,
                                                  candidate.label, candidate.strategy);
  if (evidence) file.evidence = evidence_of(of_.driver->outcome());
  return tuner::to_json(file);
}

}  // namespace gradtune
