// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/published_schedules.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "policies/cost/cost_model.h"

namespace gradtune::policies {
namespace {

// US-Byte's unit of block sizes, in elements.
constexpr int64_t kUnit = 100'000;

double transfer_us(const LinearCost& cost, int64_t elements) {
  return cost.message_us + cost.element_us * static_cast<double>(elements);
}

// Blocks of tensors in the order in which they leave; each tensor's blocks start at its beginning.
class Blocks {
 public:
  explicit Blocks(const ScheduledJob& job) : job_(job), begun_(job.table.tensors.size()) {}

  int64_t rest(size_t tensor) const { return job_.table.tensors[tensor].numel - begun_[tensor]; }

  // `joins`: it forms one message with the previous block, if both are of the same tensor.
  void send(size_t tensor, int64_t elements, bool joins) {
    if (joins && !sent_.empty() && sent_.back().slices[0].tensor == static_cast<int32_t>(tensor)) {
      sent_.back().slices[0].length += elements;
    } else {
      sent_.push_back({.slices = {{static_cast<int32_t>(tensor), begun_[tensor], elements}},
                       .option = job_.option,
                       .due = core::Due::forward});
    }
    begun_[tensor] += elements;
  }

  Sent take() { return std::move(sent_); }

 private:
  const ScheduledJob& job_;
  std::vector<int64_t> begun_;
  Sent sent_;
};

// `reads`: the ranks of by_read().
Sent fill_gaps(const ScheduledJob& job, std::span<const int> ranks, std::span<const int> reads,
               std::span<const double> ready_us) {
  const double latency_us = job.cost.message_us, unit_us = job.cost.element_us * kUnit;
  Blocks blocks(job);
  std::set<std::pair<int, size_t>> pending;
  double now_us = 0;
  for (size_t next = 0; next < ready_us.size(); ++next) {
    while (now_us < ready_us[next] && !pending.empty()) {
      const size_t tensor = pending.begin()->second;
      const int64_t rest = blocks.rest(tensor);
      const double gap_us = ready_us[next] - now_us;
      int64_t elements = kUnit;
      if (gap_us >= latency_us) {
        const double units = std::max(std::ceil((gap_us - latency_us) / unit_us), 1.0);
        elements = units * kUnit < static_cast<double>(rest) ? static_cast<int64_t>(units) * kUnit : rest;
      }
      elements = std::min(elements, rest);
      blocks.send(tensor, elements, /*joins=*/true);
      now_us += transfer_us(job.cost, elements);
      if (elements == rest) pending.erase(pending.begin());
    }
    now_us = std::max(now_us, ready_us[next]);
    if (blocks.rest(next) > 0) pending.insert({ranks[next], next});
  }
  std::vector<std::pair<int, size_t>> left;
  for (const auto& [rank, tensor] : pending) left.emplace_back(reads[tensor], tensor);
  std::ranges::sort(left);
  for (const auto& [read, tensor] : left) blocks.send(tensor, blocks.rest(tensor), /*joins=*/false);
  return blocks.take();
}

}  // namespace

Sent wait_free(const ScheduledJob& job) {
  Sent sent;
  for (size_t t = 0; t < job.table.tensors.size(); ++t) {
    const int64_t numel = job.table.tensors[t].numel;
    if (numel > 0) sent.push_back({.slices = {{static_cast<int32_t>(t), 0, numel}}, .option = job.option});
  }
  return sent;
}

Sent merged(const ScheduledJob& job) {
  Sent sent = wait_free(job);
  const std::vector<double> ready_us = ready_times_us(job.table);
  std::vector<double> begin_us(sent.size());
  std::vector<int64_t> numel(sent.size());  // 0: merged into the next one
  for (size_t m = 0; m < sent.size(); ++m) numel[m] = core::numel(sent[m]);
  const auto ready = [&](size_t m) { return ready_us[static_cast<size_t>(sent[m].slices[0].tensor)]; };
  const auto took_us = [&](size_t m) { return numel[m] > 0 ? transfer_us(job.cost, numel[m]) : 0; };
  const auto find_begins = [&](size_t from) {
    for (size_t m = std::max<size_t>(from, 1); m < sent.size(); ++m) {
      begin_us[m] = std::max(begin_us[m - 1] + took_us(m - 1), ready(m));
    }
  };
  if (!sent.empty()) begin_us[0] = ready(0);
  find_begins(1);
  const auto dtype = [&](size_t m) { return core::dtype_of(sent[m], job.table); };
  for (size_t m = 0; m + 1 < sent.size(); ++m) {
    const double next_us = ready(m + 1);
    const bool saves =
        next_us < begin_us[m] + took_us(m) && (begin_us[m] > next_us || next_us - begin_us[m] < job.cost.message_us);
    if (!saves || dtype(m) != dtype(m + 1)) continue;
    numel[m + 1] += std::exchange(numel[m], 0);
    find_begins(m + 1);
  }
  Sent merged;
  std::vector<core::Slice> slices;
  for (size_t m = 0; m < sent.size(); ++m) {
    slices.push_back(sent[m].slices[0]);
    if (numel[m] == 0) continue;
    merged.push_back({.slices = std::exchange(slices, {}), .option = job.option});
  }
  return merged;
}

std::vector<int> by_read(const core::GradientTable& table) {
  std::vector<size_t> order(table.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::reverse(order);
  std::ranges::stable_sort(order, {}, [&](size_t t) { return table.tensors[t].read_us; });
  std::vector<int> ranks(order.size());
  for (size_t i = 0; i < order.size(); ++i) ranks[order[i]] = static_cast<int>(i);
  return ranks;
}

Sent partitioned(const ScheduledJob& job, int64_t most_elements) {
  const std::vector<double> ready_us = ready_times_us(job.table);
  const std::vector<int> ranks = by_read(job.table);
  Blocks blocks(job);
  std::set<std::pair<int, size_t>> pending;
  double now_us = 0;
  for (size_t next = 0; next < ready_us.size() || !pending.empty();) {
    for (; next < ready_us.size() && ready_us[next] <= now_us; ++next) {
      if (blocks.rest(next) > 0) pending.insert({ranks[next], next});
    }
    if (pending.empty()) {
      if (next < ready_us.size()) now_us = ready_us[next];
      continue;
    }
    const size_t tensor = pending.begin()->second;
    const int64_t elements = std::min(blocks.rest(tensor), most_elements);
    blocks.send(tensor, elements, /*joins=*/false);
    now_us += transfer_us(job.cost, elements);
    if (blocks.rest(tensor) == 0) pending.erase(pending.begin());
  }
  return blocks.take();
}

Sent gap_blocks(const ScheduledJob& job, std::span<const int> ranks) {
  return fill_gaps(job, ranks, by_read(job.table), ready_times_us(job.table));
}

Sent search_gap_blocks(const ScheduledJob& job, const std::function<double(const Sent&)>& end_us) {
  const std::vector<double> ready_us = ready_times_us(job.table);
  const std::vector<int> reads = by_read(job.table);
  std::vector<int> ranks = reads;
  Sent best = fill_gaps(job, ranks, reads, ready_us);
  double best_us = end_us(best);
  for (size_t t = 0; t + 1 < ranks.size();) {
    // The last gradient that becomes ready while the tensor would be in flight without interruption.
    const double until_us = ready_us[t] + transfer_us(job.cost, job.table.tensors[t].numel);
    size_t last = t;
    while (last + 1 < ranks.size() && ready_us[last + 1] < until_us) ++last;
    std::vector<int> moved = ranks;
    // Move it ahead of all of those: it takes the most urgent of their ranks, and the others move back by one.
    for (size_t other = t + 1; other <= last; ++other) moved[t] = std::min(moved[t], ranks[other]);
    for (size_t other = 0; other < ranks.size(); ++other) {
      if (other != t && ranks[other] >= moved[t] && ranks[other] < ranks[t]) ++moved[other];
    }
    size_t next = t + 1;
    if (moved[t] != ranks[t]) {
      Sent sent = fill_gaps(job, moved, reads, ready_us);
      const double us = end_us(sent);
      if (us < best_us) {
        std::tie(best, best_us, ranks) = std::tuple(std::move(sent), us, std::move(moved));
        next = std::max(last, t + 1);
      }
    }
    t = next;
  }
  return best;
}

core::Strategy strategy_in_order(Sent sent) {
  const auto position = [&](size_t place) {
    const core::Slice& first = sent[place].slices.front();
    return std::pair(first.tensor, first.offset);
  };
  std::vector<core::Issue> order = core::staggered_order(sent);
  std::vector<size_t> by_position(sent.size());
  std::iota(by_position.begin(), by_position.end(), size_t{0});
  std::ranges::sort(by_position, {}, position);
  core::Strategy strategy;
  std::vector<int32_t> number(sent.size());
  for (const size_t place : by_position) {
    number[place] = static_cast<int32_t>(strategy.buckets.size());
    strategy.buckets.push_back(std::move(sent[place]));
  }
  core::set_default_flow(strategy);  // in flight as usual
  for (core::Issue& issue : order) issue.bucket = number[static_cast<size_t>(issue.bucket)];
  strategy.order = std::move(order);
  return strategy;
}

}  // namespace gradtune::policies
