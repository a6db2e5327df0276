// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/arms.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "policies/cost/program_cost.h"
#include "policies/planner.h"
#include "policies/space/admission.h"
#include "policies/space/schemes.h"

namespace gradtune::bench {
namespace {

using policies::Candidate;
using policies::Partition;
using policies::Scheme;

constexpr int kMostBuckets = 8;
constexpr size_t kFusions = 3;

void keep_better(std::optional<Candidate>& best, Candidate candidate, const policies::StepTimePredictor& forecast) {
  const auto step = forecast.step(candidate.strategy);
  if (!step || (best && *best->predicted_ms <= step->ms)) return;
  candidate.predicted_ms = step->ms;
  best = std::move(candidate);
}

// Programs with levels, as forms of flat ones. Without levels there are none.
std::vector<Scheme> forms_with_levels(const policies::Knowledge& knowledge) {
  std::vector<Scheme> forms;
  for (const core::Option& option : policies::admitted_options(knowledge)) {
    if (!core::uses_levels(option) || option.codecs.size() > 1) continue;
    Scheme form{.option = option, .label = core::to_string(option), .end = knowledge.table.tensors.size()};
    if (!option.codecs.empty()) {
      const auto codec = std::ranges::find(knowledge.codecs, option.codecs[0]);
      form.codec = static_cast<size_t>(codec - knowledge.codecs.begin());
      const bool loses = core::needed_fidelity(option, knowledge.traits) == core::Fidelity::lossy;
      if (loses) form.end = knowledge.table.first_small();
    }
    forms.push_back(std::move(form));
  }
  return forms;
}

// Espresso's choice for each tensor under that model.
std::optional<Candidate> plan_by_espresso(const policies::Knowledge& knowledge,
                                          const policies::StepTimePredictor& forecast) {
  const auto model =
      policies::make_program_cost(forecast.cost().table, policies::admitted_options(knowledge), knowledge.traits,
                                  knowledge.table.numel(), core::dtypes_of(knowledge.table));
  if (!model) return {};
  auto planned = policies::plan("espresso", {*model.value(), knowledge});
  std::optional<Candidate> chosen;
  if (planned) keep_better(chosen, {std::move(planned).value().strategy, "espresso"}, forecast);
  return chosen;
}

}  // namespace

std::vector<Arm> other_arms(const policies::Knowledge& knowledge, const policies::StepTimePredictor& forecast) {
  std::vector<Scheme> forms = policies::admitted_schemes(knowledge);
  std::ranges::move(forms_with_levels(knowledge), std::back_inserter(forms));
  const std::vector<Partition> partitions = policies::nested_partitions(knowledge.table, kMostBuckets);
  Partition tensors;
  for (size_t t = 0; t < knowledge.table.tensors.size(); ++t) {
    tensors.push_back({{static_cast<int32_t>(t), 0, knowledge.table.tensors[t].numel}});
  }
  std::map<std::pair<size_t, bool>, std::optional<Candidate>> fusion_of;  // of each compressor, flat and with levels
  std::optional<Candidate> per_tensor, summed, gathered;
  for (const Scheme& form : forms) {
    for (const Partition& partition : partitions) {
      keep_better(fusion_of[{form.codec, core::uses_levels(form.option)}], policies::apply(form, partition, knowledge),
                  forecast);
    }
    keep_better(per_tensor, policies::apply(form, tensors, knowledge), forecast);
    if (form.place == core::Place::host) continue;
    // Typical choices of people: bf16 in four buckets, and the smallest payload in two.
    if (form.label == "bf16 all_reduce") {
      keep_better(summed, policies::apply(form, partitions[std::min<size_t>(3, partitions.size() - 1)], knowledge),
                  forecast);
    }
    if (form.label.starts_with("topk") && form.label.ends_with(" gather") && !core::uses_levels(form.option)) {
      keep_better(gathered, policies::apply(form, partitions[std::min<size_t>(1, partitions.size() - 1)], knowledge),
                  forecast);
    }
  }
  std::vector<Arm> arms;
  std::set<uint64_t> known;
  const auto add = [&](const std::string& kind, const std::optional<Candidate>& candidate) {
    if (candidate && known.insert(core::hash(candidate->strategy)).second) arms.push_back({kind, *candidate});
  };
  std::vector<Candidate> fusions;
  for (const auto& [kind, fusion] : fusion_of) {
    if (fusion) fusions.push_back(*fusion);
  }
  std::ranges::sort(fusions, {}, [](const Candidate& fusion) { return *fusion.predicted_ms; });
  for (size_t f = 0; f < std::min(kFusions, fusions.size()); ++f) add("fusion", fusions[f]);
  add("tensor", per_tensor);
  add("tensor", plan_by_espresso(knowledge, forecast));
  add("pinned", summed);
  add("pinned", gathered);
  return arms;
}

}  // namespace gradtune::bench
