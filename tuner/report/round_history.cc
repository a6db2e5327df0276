// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/round_history.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "engine/core/median.h"

namespace gradtune::tuner {

std::optional<ExchangeTimes> RoundHistory::deciding() const {
  if (runs.empty()) return std::nullopt;
  return runs.back().choice.times ? runs.back().choice.times : runs.back().times;
}

RoundHistory round_history(const JournalFile& journal) {
  RoundHistory history;
  if (journal.rounds.empty()) return history;
  // A journal that was continued from a checkpoint may tell of a step twice.
  std::vector<RoundChoice> choices = journal.rounds;
  std::ranges::stable_sort(choices, {}, &RoundChoice::step);
  for (const RoundChoice& choice : choices) history.runs.push_back({.choice = choice});

  std::set<int64_t> seen;
  for (const core::StepReport& report : journal.reports) {
    if (report.step < choices.front().step || !(report.step_ms > 0) || !seen.insert(report.step).second) continue;
    history.rounds.push_back({.round = report.step,
                              .slot = report.slot,
                              .times = exchange_times(report),
                              .counts = report.finite && !report.excluded});
  }
  std::ranges::stable_sort(history.rounds, {}, &RoundTimes::round);

  size_t at = 0;
  std::vector<std::vector<double>> exchanges(history.runs.size()), updates = exchanges, works = exchanges,
                                                                   shares = exchanges;
  for (RoundTimes& round : history.rounds) {
    while (at + 1 < history.runs.size() && history.runs[at + 1].choice.step <= round.round) ++at;
    round.shape = history.runs[at].choice.round;
    if (!round.counts) continue;
    ++history.runs[at].rounds;
    exchanges[at].push_back(round.times.exchange_ms);
    updates[at].push_back(round.times.update_ms);
    works[at].push_back(round.times.work_ms);
    if (std::isfinite(round.share())) shares[at].push_back(round.share());
  }
  for (size_t r = 0; r < history.runs.size(); ++r) {
    RoundsRun& run = history.runs[r];
    if (!exchanges[r].empty()) {
      run.times = {core::median(exchanges[r]), core::median(updates[r]), core::median(works[r])};
    }
    if (!shares[r].empty()) run.share = core::median(shares[r]);
  }
  return history;
}

}  // namespace gradtune::tuner
