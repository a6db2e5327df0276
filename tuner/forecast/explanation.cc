// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/forecast/explanation.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "engine/core/median.h"
#include "policies/cost/program_cost.h"
#include "policies/cost/timeline.h"
#include "policies/space/admission.h"
#include "policies/space/baseline.h"
#include "policies/space/sparse_tensors.h"

namespace gradtune::tuner {
namespace {

using policies::CostTable;

constexpr size_t kMostBuckets = 256;  // the larger ones, so that a page takes seconds at most
constexpr size_t kMostWays = 3;       // of each kind: the fastest by themselves

void spare(Part part, double factor, CostTable& cost) {
  if (part == Part::compressors) {
    for (policies::CodecRate& rate : cost.codecs) {
      for (double* us :
           {&rate.encode_us, &rate.encode_element_us, &rate.decode_us, &rate.decode_element_us, &rate.decode_byte_us}) {
        *us *= factor;
      }
    }
    cost.scale_us *= factor;
    cost.scale_element_us *= factor;
    return;
  }
  for (policies::CollectiveRate& rate : cost.collectives) {
    if (part == Part::bytes) rate.byte_us *= factor;
    if (part == Part::messages) {
      rate.message_us *= factor;
      rate.wait_us *= factor;
    }
  }
}

void halve_delay(CostTable& cost) {
  for (policies::CollectiveRate& rate : cost.collectives) {
    if (!policies::uses_network(rate.level)) continue;
    rate.message_us -= rate.wait_us / 2;
    rate.wait_us /= 2;
  }
}

void double_rate(CostTable& cost) {
  for (policies::CollectiveRate& rate : cost.collectives) {
    if (policies::uses_network(rate.level)) rate.byte_us /= 2;
  }
}

// The bucket with another program, whose collectives take the places of the former ones in the order. Further ones
// follow the last of these.
core::Strategy with_option(core::Strategy strategy, int32_t bucket, const core::Option& option) {
  std::vector<int32_t> steps;
  for (size_t s = 0; s < option.steps.size(); ++s) {
    if (core::is_collective(option.steps[s].kind)) steps.push_back(static_cast<int32_t>(s));
  }
  const auto former = std::ranges::count(strategy.order, bucket, &core::Issue::bucket);
  std::vector<core::Issue> order;
  size_t next = 0;
  int64_t met = 0;
  for (const core::Issue& issue : strategy.order) {
    if (issue.bucket != bucket) {
      order.push_back(issue);
      continue;
    }
    ++met;
    if (next < steps.size()) order.push_back({bucket, steps[next++]});
    while (met == former && next < steps.size()) order.push_back({bucket, steps[next++]});
  }
  strategy.order = std::move(order);
  strategy.buckets[static_cast<size_t>(bucket)].option = option;
  return strategy;
}

class Explainer {
 public:
  Explainer(const policies::Candidate& candidate, const policies::Knowledge& knowledge,
            const policies::StepTimePredictor& model)
      : strategy_(candidate.strategy), knowledge_(knowledge), model_(model), table_(model.table()) {
    baselines_ = policies::baselines(table_, knowledge.fidelity);
    dense_ = policies::admitted_options(knowledge);
    sparse_ = policies::sparse_options(knowledge);
  }

  std::vector<BucketReason> reasons() const {
    std::vector<size_t> largest(strategy_.buckets.size());
    std::iota(largest.begin(), largest.end(), size_t{0});
    const auto bytes = [&](size_t b) { return bytes_of(strategy_.buckets[b]); };
    std::ranges::stable_sort(largest, std::greater(), bytes);
    largest.resize(std::min(largest.size(), kMostBuckets));
    std::ranges::sort(largest);
    const std::vector<double> expected_ms = times_ms();
    std::vector<BucketReason> reasons;
    for (const size_t b : largest) {
      const core::Bucket& bucket = strategy_.buckets[b];
      const auto name = [&](const core::Slice& slice) {
        return table_.tensors[static_cast<size_t>(slice.tensor)].name;
      };
      reasons.push_back({.bucket = static_cast<int32_t>(b),
                         .first = name(bucket.slices.front()),
                         .last = name(bucket.slices.back()),
                         .bytes = bytes(b),
                         .option = bucket.option,
                         .plain = usual_ways(bucket).front(),
                         .expected_ms = expected_ms[b],
                         .others = others(static_cast<int32_t>(b))});
    }
    return reasons;
  }

 private:
  // The ways of the baselines, that of fp32 first.
  std::vector<core::Option> usual_ways(const core::Bucket& bucket) const {
    std::vector<core::Option> ways;
    for (const policies::Candidate& baseline : baselines_) {
      for (const core::Bucket& other : baseline.strategy.buckets) {
        if (std::ranges::find(other.slices, bucket.slices[0].tensor, &core::Slice::tensor) != other.slices.end())
          ways.push_back(other.option);
      }
    }
    return ways;
  }

  int64_t bytes_of(const core::Bucket& bucket) const {
    return core::numel(bucket) * core::bytes_per_element(core::dtype_of(bucket, table_));
  }

  std::vector<double> times_ms() const {
    std::vector<double> begin(strategy_.buckets.size(), -1), end(strategy_.buckets.size(), 0);
    std::vector<policies::Span> spans;
    auto timeline = policies::Timeline::make(table_, strategy_, model_.cost().table, knowledge_.traits);
    if (timeline) timeline.value().run(spans);
    for (const policies::Span& span : spans) {
      if (span.bucket < 0) continue;
      const auto b = static_cast<size_t>(span.bucket);
      begin[b] = begin[b] < 0 ? span.begin_us : std::min(begin[b], span.begin_us);
      end[b] = std::max(end[b], span.end_us);
    }
    for (size_t b = 0; b < end.size(); ++b) end[b] = (end[b] - std::max(begin[b], 0.0)) * 1e-3;
    return end;
  }

  bool may_send(const core::Bucket& bucket, const core::Option& option) const {
    if (option == bucket.option || !core::takes(option, core::dtype_of(bucket, table_))) return false;
    const bool loses = core::needed_fidelity(option, knowledge_.traits) == core::Fidelity::lossy;
    const auto first_small = static_cast<int32_t>(table_.first_small());
    return !loses ||
           std::ranges::all_of(bucket.slices, [&](const core::Slice& slice) { return slice.tensor < first_small; });
  }

  // The usual ways, and those that take least by themselves.
  std::vector<core::Option> worth_a_look(const core::Bucket& bucket) const {
    const std::vector<core::Matrix> matrices = core::matrices_of(bucket, table_);
    const core::Extent extent(core::numel(bucket), matrices, core::content_of(bucket, table_));
    const core::TensorInfo& first = table_.tensors[static_cast<size_t>(bucket.slices[0].tensor)];
    const bool is_table = bucket.slices.size() == 1 && policies::is_sparse(first);
    std::vector<std::pair<double, const core::Option*>> ranked;
    for (const core::Option& option : is_table ? sparse_ : dense_) {
      if (!may_send(bucket, option)) continue;
      const auto work = policies::program_work(model_.cost().table, option, extent, knowledge_.traits,
                                               core::dtype_of(bucket, table_));
      if (work) ranked.emplace_back(std::accumulate(work->begin(), work->end(), 0.0), &option);
    }
    std::ranges::stable_sort(ranked, {}, &std::pair<double, const core::Option*>::first);
    std::vector<core::Option> ways;
    for (const core::Option& option : usual_ways(bucket)) {
      if (may_send(bucket, option) && std::ranges::find(ways, option) == ways.end()) ways.push_back(option);
    }
    for (size_t r = 0; r < std::min(ranked.size(), kMostWays); ++r) {
      if (std::ranges::find(ways, *ranked[r].second) == ways.end()) ways.push_back(*ranked[r].second);
    }
    return ways;
  }

  std::vector<OtherWay> others(int32_t b) const {
    std::vector<OtherWay> others;
    for (core::Option& option : worth_a_look(strategy_.buckets[static_cast<size_t>(b)])) {
      if (const auto step = model_.step(with_option(strategy_, b, option)))
        others.push_back({std::move(option), step->ms});
    }
    std::ranges::stable_sort(others, {}, &OtherWay::ms);
    return others;
  }

  const core::Strategy& strategy_;
  const policies::Knowledge& knowledge_;
  const policies::StepTimePredictor& model_;
  const core::GradientTable& table_;
  std::vector<policies::Candidate> baselines_;
  std::vector<core::Option> dense_, sparse_;  // that a plan may use for dense gradients, and for a sparse table
};

// For each bucket, the median over timed steps of the time from its first operation to its last one.
std::vector<std::optional<double>> measured_times_ms(const JournalFile& journal, int32_t slot) {
  std::map<int32_t, std::vector<double>> times;
  for (const Timing& timing : journal.timings) {
    if (timing.slot != slot) continue;
    std::map<int32_t, std::pair<double, double>> spans;
    for (const policies::TimedOp& op : timing.ops) {
      auto& [begin_us, end_us] = spans.try_emplace(op.bucket, op.begin_us, op.end_us).first->second;
      begin_us = std::min(begin_us, op.begin_us);
      end_us = std::max(end_us, op.end_us);
    }
    for (const auto& [bucket, span] : spans) times[bucket].push_back((span.second - span.first) * 1e-3);
  }
  std::vector<std::optional<double>> medians(journal.strategies.at(slot).strategy.buckets.size());
  for (const auto& [bucket, ms] : times) {
    if (bucket >= 0 && static_cast<size_t>(bucket) < medians.size())
      medians[static_cast<size_t>(bucket)] = core::median(ms);
  }
  return medians;
}

// One for each level, by its all-reduce if the model knows it.
std::vector<LinkRate> links_of(const CostTable& cost) {
  std::vector<LinkRate> links;
  for (const policies::CollectiveRate& rate : cost.collectives) {
    if (!policies::uses_network(rate.level)) continue;
    constexpr double kBits = 8;
    const LinkRate link{.level = rate.level,
                        .mbit_per_s = rate.byte_us > 0 ? kBits / rate.byte_us : 0,
                        .message_ms = rate.message_us / 1e3,
                        .kind = rate.kind};
    const auto known = std::ranges::find(links, rate.level, &LinkRate::level);
    if (known == links.end()) {
      links.push_back(link);
    } else if (rate.kind == core::Step::Kind::all_reduce) {
      *known = link;
    }
  }
  return links;
}

// The compressors of the buckets, then of their best other ways, without "none".
std::vector<UsedCompressor> compressors_of(const std::vector<BucketReason>& buckets, core::TraitsTable known) {
  std::vector<UsedCompressor> used;
  const auto add = [&](const core::Option& option) {
    for (const core::CompressorSpec& codec : option.codecs) {
      const core::CompressorTraits* const traits = core::traits_of(codec, known);
      if (codec.name == "none" || traits == nullptr ||
          std::ranges::find(used, codec, &UsedCompressor::spec) != used.end())
        continue;
      used.push_back({codec, std::string(traits->summary), std::string(traits->parameter_name), traits->fidelity});
    }
  };
  for (const BucketReason& bucket : buckets) add(bucket.option);
  for (const BucketReason& bucket : buckets) {
    if (!bucket.others.empty()) add(bucket.others.front().option);
  }
  return used;
}

void sort_by_time(auto& values) {
  std::ranges::stable_sort(values, {}, [](const auto& value) { return value.ms; });
}

}  // namespace

std::optional<Explanation> explain(const policies::Candidate& candidate, const policies::Knowledge& knowledge,
                                   const policies::StepTimePredictor& model, bool is_whole) {
  const core::Strategy& strategy = candidate.strategy;
  const auto step = model.step(strategy);
  if (!step) return {};
  const auto with = [&](const std::function<void(CostTable&)>& change, double computation = 1) {
    return model.elsewhere(change, computation).step(strategy)->ms;
  };
  constexpr Part kParts[] = {Part::bytes, Part::messages, Part::compressors};
  Explanation explanation{.label = candidate.label,
                          .ranks = knowledge.ranks,
                          .links = links_of(model.cost().table),
                          .is_whole = is_whole,
                          .expected_ms = step->ms,
                          .computation_ms = with([&](CostTable& cost) {
                            for (const Part part : kParts) spare(part, 0, cost);
                          }),
                          .buckets = Explainer(candidate, knowledge, model).reasons()};
  for (const Part part : kParts) {
    explanation.without.push_back({part, with([&](CostTable& cost) { spare(part, 0, cost); })});
  }
  explanation.helped = {
      {Remedy::twice_the_rate, with(double_rate)},
      {Remedy::half_the_delay, with(halve_delay)},
      {Remedy::faster_compressors, with([](CostTable& cost) { spare(Part::compressors, 0.5, cost); })},
  };
  sort_by_time(explanation.without);
  sort_by_time(explanation.helped);
  explanation.larger_batch = 1 - with([](CostTable&) {}, 2) / (2 * step->ms);
  explanation.compressors = compressors_of(explanation.buckets, knowledge.traits);
  explanation.left_out = static_cast<int64_t>(strategy.buckets.size() - explanation.buckets.size());
  return explanation;
}

core::Result<Explanation> explain(const JournalFile& journal, int32_t slot) {
  const auto job = recorded_job(journal);
  if (!job) return job.error();
  const policies::Candidate& candidate = journal.strategies.at(slot);
  auto explained = explain(candidate, job.value().knowledge, job.value().model, /*is_whole=*/true);
  if (!explained) {
    return core::Error{core::Error::Code::invalid,
                       "it has no times of a step under strategy \"" + candidate.label + "\""};
  }
  Explanation explanation = std::move(*explained);
  const auto measured_ms = measured_times_ms(journal, slot);
  for (BucketReason& reason : explanation.buckets) reason.measured_ms = measured_ms[static_cast<size_t>(reason.bucket)];
  for (const RanStrategy& ran : job.value().ran) {
    if (ran.candidate.strategy == candidate.strategy) explanation.measured_ms = ran.measured_ms;
  }
  explanation.ran = job.value().ran;
  if (job.value().knowledge.fidelity < core::Fidelity::lossy) {
    const auto lossy = recorded_job(journal, core::Fidelity::lossy);
    const auto choice = lossy ? forecast_choice(lossy.value().knowledge, lossy.value().model) : std::nullopt;
    if (choice) explanation.helped.push_back({Remedy::lossy, choice->ms, !lossy.value().guessed.empty()});
    sort_by_time(explanation.helped);
  }
  return explanation;
}

}  // namespace gradtune::tuner
