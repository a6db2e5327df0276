// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/planner.h"
#include "policies/policy.h"

#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "engine/core/unknown_name.h"
#include "policies/cost/forward_pass.h"
#include "policies/search/espresso_search.h"
#include "policies/search/label_search.h"
#include "policies/search/overlap_search.h"
#include "policies/search/published_schedules.h"
#include "policies/space/baseline.h"

namespace gradtune::policies {
namespace {

// The units of buckets, in the order of readiness: tensors, or pieces of them. Neighbours of one dtype may be
// merged, across atoms of other dtypes between them.
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

  // Cuts `whole` into parts of about equal size.
  void cut(const Atom& whole, int32_t tensor, int64_t parts) {
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = whole.numel * part / parts, end = whole.numel * (part + 1) / parts;
      atoms.push_back({end - begin, whole.ready_us, whole.is_small, whole.dtype});
      slices.push_back({{tensor, begin, end - begin}});
    }
  }

  // By their last tensors, because an atom that was merged across others is ready after them.
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

constexpr int kOverlapPieces = 64;             // pieces of the joint search when its answer is only a start
constexpr int64_t kOverlapWork = 250'000;      // replayed messages; takes a few milliseconds
constexpr int64_t kQuickOverlapWork = 60'000;  // takes about a millisecond
constexpr int64_t kQuickWork = 10'000;         // labels of a search from pieces; takes about a millisecond

bool has_all(const CostModel& model, const core::Strategy& strategy) {
  return std::all_of(strategy.buckets.begin(), strategy.buckets.end(),
                     [&](const core::Bucket& bucket) { return number_of(bucket.option, model).has_value(); });
}

// The option and due time of one bucket when that option is meant for all buckets. Gradients of 16 bits are summed
// without it. In a job without a forward pass to overlap with, every bucket is due when backward returns.
struct Terms {
  const core::Option& option;
  core::Due due;
};
Terms terms_of(const core::Bucket& bucket, const core::Option& option, const PlannedJob& job) {
  static const core::Option kPlain = core::plain_all_reduce();
  const core::GradientTable& table = job.knowledge.table;
  const core::Option& own = core::dtype_of(bucket, table) == core::DType::f32 ? option : kPlain;
  const bool is_read = std::ranges::all_of(bucket.slices, [&](const core::Slice& slice) {
    return table.tensors[static_cast<size_t>(slice.tensor)].read_us >= 0;
  });
  const bool may_be_late = job.knowledge.forward_overlap && is_read && can_be_late(own);
  return {own, may_be_late ? bucket.due : core::Due::backward};
}

Sent with_option(Sent sent, const core::Option& option, const PlannedJob& job) {
  for (core::Bucket& bucket : sent) {
    const auto& [own, due] = terms_of(bucket, option, job);
    bucket.due = due;
    bucket.option = own;
  }
  return sent;
}

double end_us_of(const core::Strategy& strategy, const PlannedJob& job) {
  const core::GradientTable& table = job.knowledge.table;
  return forward_end_us(job.model, table, strategy) -
         (job.knowledge.forward_overlap ? 0 : forward_pass(table).whole_us);
}

void improve(Planned& best, core::Strategy strategy, const PlannedJob& job) {
  const double end_us = end_us_of(strategy, job);
  if (end_us < best.end_us) best = {std::move(strategy), end_us, {}};
}

// The best plan of `make` over the options that a user has without gradtune. For a 16-bit option and fp32 gradients,
// buckets are in the order in which they leave.
template <class Make>
Planned plan_plainly(const PlannedJob& job, const Make& make) {
  Planned best{.strategy = {}, .end_us = std::numeric_limits<double>::infinity()};
  for (size_t o = 0; o < job.model.options().size(); ++o) {
    const core::Option& option = job.model.options()[o];
    if (!is_baseline(option, job.model.loses(o))) continue;
    for (Sent& sent : make(o)) improve(best, strategy_in_order(with_option(std::move(sent), option, job)), job);
  }
  return best;
}

// The plan that a user has without gradtune: DDP's buckets, under the faster of the options that such a user has.
Planned plan_baseline(const PlannedJob& job) {
  Planned best{.strategy = {}, .end_us = std::numeric_limits<double>::infinity()};
  core::Strategy strategy = baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy;
  for (size_t o = 0; o < job.model.options().size(); ++o) {
    const core::Option& option = job.model.options()[o];
    if (!is_baseline(option, job.model.loses(o))) continue;
    strategy.buckets = with_option(std::move(strategy.buckets), option, job);
    strategy.order = core::staggered_order(strategy.buckets);
    improve(best, strategy, job);
  }
  return best;
}

// The channel for the option's messages, as published schedulers model it: a line through the smallest and the
// largest message.
ScheduledJob scheduled(const PlannedJob& job, size_t option) {
  const auto& tensors = job.knowledge.table.tensors;
  const core::DType dtype = tensors.empty() ? core::DType::f32 : tensors[0].dtype;
  const auto link_us = [&](int64_t numel) { return job.model.work(option, numel, dtype)[kLink]; };
  const int64_t most = std::max<int64_t>(job.knowledge.table.numel(), 2);
  const double element_us = (link_us(most) - link_us(1)) / static_cast<double>(most - 1);
  return {.table = job.knowledge.table,
          .cost = {.message_us = std::max(link_us(1) - element_us, 0.0), .element_us = element_us},
          .option = job.model.options()[option]};
}

Planned plan_wait_free(const PlannedJob& job) {
  return plan_plainly(job, [&](size_t o) { return std::vector<Sent>{wait_free(scheduled(job, o))}; });
}

Planned plan_merged(const PlannedJob& job) {
  return plan_plainly(job, [&](size_t o) { return std::vector<Sent>{merged(scheduled(job, o))}; });
}

// The credit is tuned: blocks of one of these sizes, whole tensors first.
Planned plan_partitioned(const PlannedJob& job) {
  constexpr int64_t kElements[] = {INT64_MAX, 16'000'000, 4'000'000, 1'000'000, 100'000};
  return plan_plainly(job, [&](size_t o) {
    std::vector<Sent> all;
    for (const int64_t most : kElements) all.push_back(partitioned(scheduled(job, o), most));
    return all;
  });
}

Planned plan_gap_blocks(const PlannedJob& job) {
  ForwardReplay replay(job.model, job.knowledge.table);
  return plan_plainly(job, [&](size_t o) {
    const core::Option& option = job.model.options()[o];
    const auto end_us = [&](const Sent& sent) {
      for (const core::Bucket& bucket : sent) {
        const auto& [own, due] = terms_of(bucket, option, job);
        replay.send(bucket.slices, &own == &option ? o : number_of(own, job.model).value(), due);
      }
      return replay.end_us();
    };
    ScheduledJob without_option = scheduled(job, o);
    without_option.option = {};  // it is copied with every block, and plan_plainly() sets it
    return std::vector<Sent>{search_gap_blocks(without_option, end_us)};
  });
}

// Runs the policy of that name with the model's predictions instead of measurements.
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
      const double end_us = end_us_of(candidate.strategy, job);
      policy->learn({core::hash(candidate.strategy), end_us * 1e-3, 1});
      if (final) improve(best, candidate.strategy, job);
    }
  }
  return best;
}

Planned plan_espresso(const PlannedJob& job) {
  const Atoms atoms(job.knowledge.table);
  const Plan on_device = choose_options(job.model, atoms.atoms);
  const Plan plan = offload(job.model, atoms.atoms, on_device);
  core::Strategy strategy = strategy_of(plan, atoms, job.model);
  const double end_us = job.knowledge.forward_overlap ? end_us_of(strategy, job) : plan.end_us;
  return {std::move(strategy), end_us, {}};
}

// The better one of the joint search's answer and the best plan so far.
Planned plan_joint(const PlannedJob& job, Planned best, SearchOptions options) {
  const bool is_large = job.knowledge.table.tensors.size() > kMostTensors;
  const Atoms atoms(job.knowledge.table, job.pieces == 0 && is_large ? static_cast<int>(kMostTensors / 2) : job.pieces);
  options.known_us = best.end_us;
  const SearchResult found = search_labels(job.model, atoms.atoms, options);
  if (!found.plans.empty()) best = {strategy_of(found.plans[0], atoms, job.model), found.plans[0].end_us, {}};
  best.error_bound = found.least_us > 0 ? best.end_us / found.least_us - 1 : 0;
  return best;
}

// The best plan of the other planners for steps that end with backward: if all buckets are due then, blocks only
// cost latency.
Planned best_of_others(const PlannedJob& job) {
  Planned best = plan_mergecomp(job);
  for (Planned (*other)(const PlannedJob&) : {plan_espresso, plan_merged}) improve(best, other(job).strategy, job);
  return best;
}

// The search begins with whole tensors and with the joint search's answer for steps that end with backward.
Planned plan_overlap(const PlannedJob& job) {
  Planned best = plan_mergecomp(job);
  std::vector<core::Strategy> starts = {best.strategy};
  const auto start = [&](core::Strategy strategy) {
    improve(best, strategy, job);
    starts.push_back(std::move(strategy));
  };
  start(plan_merged(job).strategy);
  start(plan_plainly(job, [&](size_t o) {
          const ScheduledJob plain = scheduled(job, o);
          return std::vector<Sent>{partitioned(plain, INT64_MAX), gap_blocks(plain, by_read(plain.table))};
        }).strategy);
  if (job.model.options().size() > 1) {
    const Atoms atoms(job.knowledge.table, job.pieces > 0 ? job.pieces : kOverlapPieces);
    const SearchResult found = search_labels(job.model, atoms.atoms, {.most_work = kQuickWork});
    if (!found.plans.empty()) start(strategy_of(found.plans[0], atoms, job.model));
  }
  const Sent sent = search_overlap(job.model, job.knowledge.table, starts,
                                   {.most_work = job.pieces > 0 ? kQuickOverlapWork : kOverlapWork});
  improve(best, strategy_in_order(sent), job);
  return best;
}

Planned plan_auto(const PlannedJob& job) {
  if (job.knowledge.forward_overlap) return plan_overlap(job);
  if (job.pieces > 0) return plan_joint(job, plan_baseline(job), {.most_work = kQuickWork});
  return plan_joint(job, best_of_others(job), {});
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
       "than the others; with a forward pass also of blocks and order",
       plan_auto},
      {"espresso", "an option for each tensor, then offload to the host; nothing is merged", plan_espresso},
      {"mergecomp", "one option for the whole model, in as few buckets as pay", plan_mergecomp},
      {"wfbp", "each tensor when it is ready (wait-free back-propagation)", plan_wait_free},
      {"mgwfbp", "neighbours merged where that saves latency (MG-WFBP)", plan_merged},
      {"bytescheduler", "blocks of one size, first what the next forward pass reads first, and the best of five sizes",
       plan_partitioned},
      {"usbyte", "blocks that fill the time until the next gradient, and a search on priorities (US-Byte)",
       plan_gap_blocks},
      {"baseline", "the buckets of PyTorch DDP, all-reduced", plan_baseline},
      {"exhaustive", "the joint optimum itself, however long it takes", plan_exhaustive},
  };
  return kTable;
}

core::Result<Planned> plan(std::string_view planner, const PlannedJob& job) {
  std::vector<std::string_view> known;
  for (const PlannerRow& row : planner_table()) known.push_back(row.name);
  for (const PlannerRow& row : planner_table()) {
    if (row.name != planner) continue;
    if (const size_t tensors = job.knowledge.table.tensors.size();
        row.plan == plan_exhaustive && tensors > kMostTensors) {
      return core::Error{core::Error::Code::invalid, "policy \"exhaustive\" plans for at most " +
                                                         std::to_string(kMostTensors) + " tensors, the job has " +
                                                         std::to_string(tensors)};
    }
    if (row.plan == plan_exhaustive && job.knowledge.forward_overlap) {
      return core::Error{
          core::Error::Code::invalid,
          "policy \"exhaustive\" plans for steps that end with backward, not with the next forward pass"};
    }
    Planned planned = row.plan(job);
    planned.strategy = with_taken_options(std::move(planned.strategy), job.knowledge.table);
    return planned;
  }
  return core::Error{core::Error::Code::invalid, core::unknown_name("policy", planner, known)};
}

}  // namespace gradtune::policies
