// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/hill_climb.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "policies/cost/timeline.h"

namespace gradtune::policies {
namespace {

constexpr double kWorthIt = 0.999;  // times the end so far: a smaller gain is not worth a change
constexpr size_t kFarthest = 4;     // places by which a collective moves at once

class Climb {
 public:
  Climb(core::Strategy strategy, int least_in_flight, const HillClimbJob& job)
      : job_(job),
        first_small_(static_cast<int32_t>(job.table.first_small())),
        least_in_flight_(least_in_flight),
        best_(std::move(strategy)) {
    best_us_ = end_us(best_);
  }

  double best_us() const { return best_us_; }

  core::Strategy run() {
    if (best_us_ == kNever) return best_;
    // Rounds over all buckets, until nothing helps.
    for (bool helped = true; helped && runs_ < job_.most_runs;) {
      helped = false;
      for (size_t b = 0; b < best_.buckets.size(); ++b) {
        helped |= change_option(b);
        helped |= merge(b);
        helped |= split(b);
      }
    }
    return best_;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  double end_us(core::Strategy& strategy) {
    ++runs_;
    core::set_default_flow(strategy);
    strategy.in_flight = std::max(strategy.in_flight, least_in_flight_);
    auto timeline = Timeline::make(job_.table, strategy, job_.cost, job_.traits);
    return timeline ? timeline.value().run() : kNever;
  }

  bool try_it(core::Strategy strategy) {
    if (runs_ >= job_.most_runs) return false;
    const double us = end_us(strategy);
    if (!(us < kWorthIt * best_us_)) return false;
    best_ = std::move(strategy);
    best_us_ = us;
    return true;
  }

  bool fits(const core::Option& option, const core::Bucket& bucket) const {
    if (!core::takes(option, core::dtype_of(bucket, job_.table))) return false;
    const bool has_small = bucket.slices.back().tensor >= first_small_;
    return !has_small || core::needed_fidelity(option, job_.traits) < core::Fidelity::lossy;
  }

  bool change_option(size_t b) {
    bool helped = false;
    for (const core::Option& option : job_.options) {
      if (option == best_.buckets[b].option || !fits(option, best_.buckets[b])) continue;
      core::Strategy strategy = best_;
      strategy.buckets[b].option = option;
      helped |= try_it(std::move(strategy));
    }
    return helped;
  }

  // Merges the bucket with the next one of its dtype, which is ready later, under the option of either.
  bool merge(size_t b) {
    const core::DType dtype = core::dtype_of(best_.buckets[b], job_.table);
    size_t n = b + 1;
    while (n < best_.buckets.size() && core::dtype_of(best_.buckets[n], job_.table) != dtype) ++n;
    if (n == best_.buckets.size() || best_.buckets[n].due != best_.buckets[b].due) return false;
    core::Strategy strategy = best_;
    const core::Bucket next = std::move(strategy.buckets[n]);
    strategy.buckets[n] = std::move(strategy.buckets[b]);
    strategy.buckets.erase(strategy.buckets.begin() + static_cast<std::ptrdiff_t>(b));
    core::Bucket& into = strategy.buckets[n - 1];
    const core::Option option = into.option;
    for (const core::Slice& slice : next.slices) {
      if (into.slices.back().tensor == slice.tensor) {
        into.slices.back().length += slice.length;
      } else {
        into.slices.push_back(slice);
      }
    }
    if (fits(option, into) && try_it(strategy)) return true;
    if (next.option == option || !fits(next.option, into)) return false;
    into.option = next.option;
    return try_it(std::move(strategy));
  }

  // Splits in the middle: between tensors, or within a single one.
  bool split(size_t b) {
    core::Strategy strategy = best_;
    core::Bucket& first = strategy.buckets[b];
    core::Bucket second{.slices = {}, .option = first.option, .due = first.due};
    if (first.slices.size() == 1) {
      core::Slice& slice = first.slices[0];
      const int64_t half = slice.length / 2;
      if (half == 0) return false;
      second.slices = {{slice.tensor, slice.offset + half, slice.length - half}};
      slice.length = half;
    } else {
      const int64_t half = core::numel(first) / 2;
      int64_t before = first.slices[0].length;
      size_t cut = 1;
      while (cut + 1 < first.slices.size() && before + first.slices[cut].length <= half) {
        before += first.slices[cut++].length;
      }
      second.slices.assign(first.slices.begin() + static_cast<std::ptrdiff_t>(cut), first.slices.end());
      first.slices.resize(cut);
    }
    strategy.buckets.insert(strategy.buckets.begin() + static_cast<std::ptrdiff_t>(b) + 1, std::move(second));
    return try_it(std::move(strategy));
  }

  const HillClimbJob& job_;
  const int32_t first_small_;
  const int least_in_flight_;
  core::Strategy best_;
  double best_us_ = kNever;
  int runs_ = 0;
};

}  // namespace

core::Strategy hill_climb(core::Strategy strategy, const HillClimbJob& job) {
  const auto waits = [](const CollectiveRate& rate) { return rate.wait_us > 0; };
  if (job.most_in_flight <= 1 || std::ranges::none_of(job.cost.collectives, waits)) {
    return reorder(Climb(std::move(strategy), 1, job).run(), job);
  }
  // While messages travel, the link serves other collectives if these may be in flight. Then many small buckets cost
  // little.
  Climb usual(strategy, 1, job), deep(std::move(strategy), job.most_in_flight, job);
  core::Strategy first = usual.run(), second = deep.run();
  return reorder(deep.best_us() < kWorthIt * usual.best_us() ? std::move(second) : std::move(first), job);
}

core::Strategy reorder(core::Strategy strategy, const HillClimbJob& job) {
  auto timeline = Timeline::make(job.table, strategy, job.cost, job.traits);
  if (!timeline) return strategy;
  std::vector<core::Issue>& order = strategy.order;
  double best_us = timeline.value().run();
  int runs = 1;
  // A collective that is followed by long work should not get the link last.
  const auto moves_earlier = [&](size_t at) {
    for (size_t by = 1; by <= std::min(at, kFarthest) && runs < job.most_runs; ++by) {
      if (order[at - by].bucket == order[at].bucket) return false;
      const auto begin = order.begin() + static_cast<std::ptrdiff_t>(at - by);
      std::rotate(begin, begin + static_cast<std::ptrdiff_t>(by), begin + static_cast<std::ptrdiff_t>(by) + 1);
      timeline.value().set_order(order);
      ++runs;
      const double us = timeline.value().run();
      if (us < kWorthIt * best_us) {
        best_us = us;
        return true;
      }
      std::rotate(begin, begin + 1, begin + static_cast<std::ptrdiff_t>(by) + 1);
    }
    return false;
  };
  for (bool helped = true; helped && runs < job.most_runs;) {
    helped = false;
    for (size_t at = order.size(); at-- > 1;) helped |= moves_earlier(at);  // the last ones matter most
  }
  return strategy;
}

}  // namespace gradtune::policies
