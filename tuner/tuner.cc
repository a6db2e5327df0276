// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/tuner.h"

#include <algorithm>
#include <utility>

#include "tuner/tuner_core.h"

namespace gradtune::tuner {

double cost_share(double cost_ms, double baseline_ms) {
  return baseline_ms > 0 ? cost_ms / (kShortJobSteps * baseline_ms) : 0;
}

int earliest_step(const TunerOptions& options, core::TraitsTable traits, const core::CompressorSpec& codec) {
  const core::CompressorTraits* const row = core::traits_of(codec, traits);
  core::check(row != nullptr, "a compressor has no traits");
  if (row->fidelity < core::Fidelity::lossy) return 0;
  const bool needs_dense = options.optimizers != core::OptimizerFamily::sgd;
  return options.lossy_after.value_or(needs_dense ? row->dense_first : 0);
}

int earliest_step(const TunerOptions& options, core::TraitsTable traits, const core::Strategy& strategy) {
  int latest = 0;
  for (const core::Bucket& bucket : strategy.buckets) {
    for (const core::CompressorSpec& codec : bucket.option.codecs) {
      latest = std::max(latest, earliest_step(options, traits, codec));
    }
  }
  return latest;
}

int32_t first_slot(const TunerOptions& options, core::TraitsTable traits,
                   const std::optional<policies::Candidate>& imported) {
  return imported && earliest_step(options, traits, imported->strategy) == 0 ? kImportedSlot : 0;
}

Tuner::Tuner(const TunerOptions& options, MakePolicy make_policy, policies::Knowledge knowledge,
             const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported)
    : core_(std::make_unique<Core>(options, std::move(make_policy), std::move(knowledge), baselines, imported)) {}

Tuner::~Tuner() = default;

Action Tuner::on_step(const core::StepReport& report) { return core_->on_step(report); }
void Tuner::learn_table(const core::GradientTable& table) { core_->learn_table(table); }
void Tuner::learn_timing(int32_t slot, std::vector<policies::TimedOp> ops) {
  core_->learn_timing(slot, std::move(ops));
}
void Tuner::learn_failure(const std::string& why) { core_->learn_failure(why); }
Stage Tuner::stage() const { return core_->stage(); }
const Outcome& Tuner::outcome() const { return core_->outcome(); }
const policies::Candidate& Tuner::in_force() const { return core_->in_force(); }
const policies::Candidate& Tuner::chosen() const { return core_->chosen(); }
double Tuner::progress() const { return core_->progress(); }
const std::vector<Score>& Tuner::ended_blocks() const { return core_->ended_blocks(); }
std::vector<Decision> Tuner::take_decisions() { return core_->take_decisions(); }

}  // namespace gradtune::tuner
