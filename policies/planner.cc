// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/planner.h"
#include "policies/policy.h"

#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "policies/search/espresso_search.h"
#include "policies/search/label_search.h"
#include "policies/space/baseline.h"

namespace gradtune::policies {
namespace {

// What buckets are made of, in the order of readiness: tensors, or pieces of them. Where neighbours are merged, those
// of one dtype are, over what lies between them.
struct Atoms {
  explicit Atoms(const core::GradientTable& table, int pieces = 0) {
    const std::vector<double> ready_us = ready_times_us(table);
    const size_t first_small = table.first_small();
    const int64_t most = pieces > 0 ? std::max<int64_t>(table.numel() / pieces, 1) : 0;
    const double most_us = pieces > 0 ? ready_us.back() / pieces : 0;
    struct Last {
      std::optional<size_t> atom = {};
      double begin_us = 0;
    };
    std::array<Last, core::kDTypes.size()> last_of;  // of each dtype
    for (size_t t = 0; t < table.tensors.size(); ++t) {
      const int64_t numel = table.tensors[t].numel;
      const auto tensor = static_cast<int32_t>(t);
      const Atom atom{numel, ready_us[t], t >= first_small, table.tensors[t].dtype};
      Last& last = last_of[static_cast<size_t>(atom.dtype)];
      const auto fits = [&](const Atom& other) {
        return other.numel + numel <= most && atom.ready_us - last.begin_us <= most_us &&
               other.is_small == atom.is_small;
      };
      if (numel == 0) continue;
      if (pieces > 0 && numel > 2 * most) {
        cut(atom, tensor, numel / most);
        last.atom = atoms.size() - 1;
      } else if (last.atom && fits(atoms[*last.atom])) {
        atoms[*last.atom].numel += numel;
        atoms[*last.atom].ready_us = atom.ready_us;
        slices[*last.atom].push_back({tensor, 0, numel});
      } else {
        last = {atoms.size(), atom.ready_us};
        atoms.push_back(atom);
        slices.push_back({{tensor, 0, numel}});
      }
    }
    sort();
  }

  // `whole` in so many parts of about one size.
  void cut(const Atom& whole, int32_t tensor, int64_t parts) {
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = whole.numel * part / parts, end = whole.numel * (part + 1) / parts;
      atoms.push_back({end - begin, whole.ready_us, whole.is_small, whole.dtype});
      slices.push_back({{tensor, begin, end - begin}});
    }
  }

  // By their last tensors: one that was merged over others is ready after them.
  void sort() {
    std::vector<size_t> order(atoms.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t a) { return slices[a].back().tensor; });
    std::vector<Atom> sorted;
    std::vector<std::vector<core::Slice>> sorted_slices;
    for (const size_t a : order) {
      sorted.push_back(atoms[a]);
      sorted_slices.push_back(std::move(slices[a]));
    }
    atoms = std::move(sorted);
    slices = std::move(sorted_slices);
  }

  std::vector<Atom> atoms;
  std::vector<std::vector<core::Slice>> slices;
};

core::Strategy strategy_of(const Plan& plan, const Atoms& atoms, const CostModel& model) {
  core::Strategy strategy;
  for (const Message& message : plan.messages) {
    core::Bucket bucket{.slices = {}, .option = model.options()[static_cast<size_t>(message.option)]};
    for (auto a = static_cast<size_t>(message.first); a <= static_cast<size_t>(message.last); ++a) {
      for (const core::Slice& slice : atoms.slices[a]) {
        if (!bucket.slices.empty() && bucket.slices.back().tensor == slice.tensor) {
          bucket.slices.back().length += slice.length;
        } else {
          bucket.slices.push_back(slice);
        }
      }
    }
    strategy.buckets.push_back(std::move(bucket));
  }
  core::set_default_flow(strategy);
  return strategy;
}

constexpr int64_t kQuickWork = 10'000;  // labels of a search from pieces, about a millisecond

bool has_all(const CostModel& model, const core::Strategy& strategy) {
  return std::all_of(strategy.buckets.begin(), strategy.buckets.end(),
                     [&](const core::Bucket& bucket) { return number_of(bucket.option, model).has_value(); });
}

void improve(Planned& best, core::Strategy strategy, const PlannedJob& job) {
  const double end_us = replay_us(job.model, job.knowledge.table, strategy);
  if (end_us < best.end_us) best = {std::move(strategy), end_us, {}};
}

// What a user has without gradtune: DDP's buckets, under the faster one of the options that such a user has.
Planned plan_baseline(const PlannedJob& job) {
  Planned best{.strategy = {}, .end_us = std::numeric_limits<double>::infinity()};
  core::Strategy strategy = baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy;
  for (size_t o = 0; o < job.model.options().size(); ++o) {
    const core::Option& option = job.model.options()[o];
    if (!is_baseline(option, job.model.loses(o))) continue;
    for (core::Bucket& bucket : strategy.buckets) {
      const bool is_fp32 = core::dtype_of(bucket, job.knowledge.table) == core::DType::f32;
      bucket.option = is_fp32 ? option : core::plain_all_reduce();
    }
    strategy.order = core::staggered_order(strategy.buckets);
    improve(best, strategy, job);
  }
  return best;
}

// The policy of that name, told what the model says instead of what was measured.
Planned plan_mergecomp(const PlannedJob& job) {
  Planned best = plan_baseline(job);
  Knowledge knowledge = job.knowledge;
  knowledge.baseline_ms = best.end_us * 1e-3;
  const std::unique_ptr<Policy> policy = make_policy("mergecomp", {}).value();
  for (bool final = false; !final;) {
    const Proposal proposal = policy->propose(knowledge);
    final = proposal.final;
    for (const Candidate& candidate : proposal.candidates) {
      if (!has_all(job.model, candidate.strategy)) continue;
      const double end_us = replay_us(job.model, knowledge.table, candidate.strategy);
      policy->learn({core::hash(candidate.strategy), end_us * 1e-3, 1});
      if (final) improve(best, candidate.strategy, job);
    }
  }
  return best;
}

Planned plan_espresso(const PlannedJob& job) {
  const Atoms atoms(job.knowledge.table);
  const Plan on_device = choose_options(job.model, atoms.atoms);
  const Plan plan = offload(job.model, atoms.atoms, on_device, job.most_replays);
  return {strategy_of(plan, atoms, job.model), plan.end_us, {}};
}

// The better one of the joint search's answer and of what is known already.
Planned plan_joint(const PlannedJob& job, Planned best, SearchOptions options) {
  const bool is_large = job.knowledge.table.tensors.size() > kMostTensors;
  const Atoms atoms(job.knowledge.table, job.pieces == 0 && is_large ? static_cast<int>(kMostTensors / 2) : job.pieces);
  options.known_us = best.end_us;
  const SearchResult found = search_labels(job.model, atoms.atoms, options);
  if (!found.plans.empty()) best = {strategy_of(found.plans[0], atoms, job.model), found.plans[0].end_us, {}};
  best.error_bound = found.least_us > 0 ? best.end_us / found.least_us - 1 : 0;
  return best;
}

Planned plan_auto(const PlannedJob& job) {
  if (job.pieces > 0) return plan_joint(job, plan_baseline(job), {.most_work = kQuickWork});
  Planned best = plan_mergecomp(job);
  improve(best, plan_espresso(job).strategy, job);
  return plan_joint(job, std::move(best), {});
}

Planned plan_exhaustive(const PlannedJob& job) {
  constexpr SearchOptions kExact{.tolerance = 0, .most_work = std::numeric_limits<int64_t>::max()};
  return plan_joint(job, {.strategy = {}, .end_us = kExact.known_us}, kExact);
}

}  // namespace

std::span<const PlannerRow> planner_table() {
  static constexpr PlannerRow kTable[] = {
      {"auto",
       "the joint optimum of partition and options, in the order of readiness, within a stated bound, and never worse "
       "than the others",
       plan_auto},
      {"espresso", "an option for each tensor, then offload to the host; nothing is merged", plan_espresso},
      {"mergecomp", "one option for the whole model, in as few buckets as pay", plan_mergecomp},
      {"baseline", "the buckets of PyTorch DDP, all-reduced", plan_baseline},
      {"exhaustive", "the joint optimum itself, however long it takes", plan_exhaustive},
  };
  return kTable;
}

core::Result<Planned> plan(std::string_view planner, const PlannedJob& job) {
  std::string known;
  for (const PlannerRow& row : planner_table()) known += (known.empty() ? "" : ", ") + std::string(row.name);
  for (const PlannerRow& row : planner_table()) {
    if (row.name != planner) continue;
    if (const size_t tensors = job.knowledge.table.tensors.size();
        row.plan == plan_exhaustive && tensors > kMostTensors) {
      return core::Error{core::Error::Code::invalid, "policy \"exhaustive\" plans for at most " +
                                                         std::to_string(kMostTensors) + " tensors, the job has " +
                                                         std::to_string(tensors)};
    }
    return row.plan(job);
  }
  return core::Error{core::Error::Code::invalid,
                     "policy \"" + std::string(planner) + "\" is unknown; known are " + known};
}

}  // namespace gradtune::policies
