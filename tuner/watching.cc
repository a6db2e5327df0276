// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/watching.h"

#include <cmath>
#include <optional>
#include <utility>

#include "tuner/blocks.h"
#include "tuner/context.h"
#include "tuner/phase.h"

namespace gradtune::tuner {
namespace {

using What = Decision::What;

// Writes down a finding about the strategy in force.
void note(Context& context, const Finding& finding) {
  const std::string& label = context.outcome.label;
  switch (finding.kind) {
    case Finding::Kind::straggler: return context.decide(What::straggler, label, finding.rank);
    case Finding::Kind::link: return context.decide(What::link, label, finding.log_shift);
    case Finding::Kind::drift: return context.decide(What::drift, label, finding.log_shift);
  }
}

// Searches without an audit: the set of strategies that may run, or the content of gradients, differs from the last
// search.
NextPhase search_again(Context& context) {
  context.renew_budget();
  context.contenders.add_former_as_leaders(context.bans);
  return Observing::again(context, Observing::Before::search);
}

}  // namespace

void Watching::conclude(Context& context, const Phase& last) const {
  Outcome& outcome = context.outcome;
  const double baseline_ms = context.knowledge.baseline_ms;
  const double level_ms = context.slots.at(slot_).step_ms.value_or(outcome.baseline_ms);
  const double cost_ms = context.budget.cost_ms(level_ms);
  const bool is_audit = std::holds_alternative<Auditing>(last);
  const auto* confirming = std::get_if<Confirming>(&last);
  const bool is_repair = confirming != nullptr && confirming->origin() == Confirming::Origin::repair;
  const bool has_lost = is_repair && !context.committed;
  if (is_audit || has_lost) {
    context.clock.audited(cost_ms);
  } else {
    context.clock.decided(cost_ms, level_ms, baseline_ms - level_ms, first_audit_ms(baseline_ms));
  }
  // After an audit that it passed, a change in the meantime must still be noticed.
  if (!is_audit || slot_ != context.committed) context.clock.watch_anew();
  outcome.steps += context.budget.steps();
  if (context.baselines.are_measured) outcome.cost_ms += context.budget.cost_ms(baseline_ms);
  outcome.label = context.candidate(slot_).label;
  context.decide(What::tuning_steps, outcome.label, static_cast<double>(outcome.steps));
  context.decide(What::tuning_cost, outcome.label, outcome.cost_ms);
  context.contenders.clear_leaders();
  context.switch_to(slot_, Command::Kind::commit);
  context.slots.release_all_but({slot_});
}

NextPhase Watching::begin(Context&) { return {}; }
NextPhase Watching::advance(Context&, const std::vector<Score>&) { return {}; }

NextPhase Watching::watch(Context& context, const core::StepReport& report) const {
  const bool is_in_force = report.slot == context.schedule.slot();
  if (!is_in_force || !report.finite || report.excluded || report.step_ms <= 0) return {};
  AuditClock& clock = context.clock;
  SearchRecord& search = context.search;
  const auto finding = clock.record(report);
  if (finding) note(context, *finding);
  if (search.left_out_until && context.diary.step + kLead >= *search.left_out_until) {
    context.decide(What::more_may_run, "", *std::exchange(search.left_out_until, std::nullopt));
    return search_again(context);
  }
  if (!context.options.retune) return {};
  clock.count(report.step_ms);
  if (std::exchange(search.has_new_content, false)) return search_again(context);
  const bool is_alarm = finding && finding->kind != Finding::Kind::straggler;
  const bool is_audit_due = context.committed && (is_alarm || clock.is_audit_due());
  if (!is_audit_due && !clock.is_look_due()) return {};
  if (const auto rank = finding ? std::nullopt : clock.take_straggler()) {
    context.decide(What::straggler, context.outcome.label, *rank);
  }
  context.renew_budget();
  if (!context.committed) return look_again(context);
  return Auditing::first(context, /*has_cause=*/is_alarm || clock.is_look_due());
}

void Watching::compare_content(Context& context, const core::GradientTable& table) const {
  const auto& before = context.knowledge.table.tensors;
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    const core::TensorInfo& tensor = table.tensors[t];
    if (t >= before.size() || tensor.content == before[t].content) continue;
    context.decide(What::density, tensor.name, std::log(tensor.content.of_all / before[t].content.of_all));
    context.search.has_new_content = true;
  }
}

NextPhase look_again(Context& context) {
  if (!context.clock.is_look_due()) return Watching(context.kept());
  return Observing::again(context, Observing::Before::looking);
}

}  // namespace gradtune::tuner
