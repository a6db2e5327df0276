// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/commands.h"

#include <utility>

#include "hooks/result_text.h"

namespace gradtune {

void Commands::announce(const tuner::Action& action) {
  if (of_.driver->take_news()) of_.results.announce(to_text(of_.driver->result()));
  const bool prepares = action.command.kind == tuner::Command::Kind::prepare;
  of_.protocol.announce(action.command,
                        prepares ? strategy_text(*action.candidate, /*evidence=*/false) : of_.results.news());
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
  if (evidence) file.evidence = of_.driver->evidence();
  return tuner::to_json(file);
}

}  // namespace gradtune
