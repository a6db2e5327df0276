// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/overlap_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/rng.h"
#include "policies/cost/forward_pass.h"
#include "policies/search/gap_filling.h"
#include "policies/search/overlap_plan.h"

namespace gradtune::policies {
namespace {

using namespace overlap;

constexpr double kEnough = 1.001;  // times the least possible end
constexpr uint64_t kSeed = 35;
constexpr double kHelps = 1 - 1e-9;  // times the end so far

// Small changes, as long as a step ends earlier.
class Climb {
 public:
  Climb(const Job& job, Replay& replay, int64_t most_work, double enough_us)
      : job_(job), replay_(replay), most_(most_work), enough_us_(enough_us) {}

  double run(Messages& messages) {
    best_ = std::move(messages);
    best_us_ = replay_.end_us(best_);
    for (bool helped = true; helped && !is_over();) {
      helped = false;
      for (size_t m = 0; m < best_.size() && !is_over(); ++m) {
        helped |= merge(m);
        if (m >= best_.size()) break;
        helped |= move_end(m);
        helped |= hold(m);
        helped |= split(m);
        helped |= change_option(m);
      }
    }
    messages = best_;
    return best_us_;
  }

 private:
  bool is_over() const { return replay_.work() >= most_ || best_us_ <= enough_us_; }

  bool try_it() {
    const double us = replay_.end_us(trial_);
    if (!(us < best_us_ * kHelps)) return false;
    best_us_ = us;
    std::swap(best_, trial_);
    return true;
  }

  // The next message in its line.
  std::optional<size_t> next_of(size_t m) const {
    for (size_t n = m + 1; n < best_.size(); ++n) {
      if (best_[n].line == best_[m].line && best_[n].begin == best_[m].end) return n;
    }
    return {};
  }

  bool merge(size_t m) {
    const auto n = next_of(m);
    if (!n || is_over()) return false;
    for (const int32_t option : {best_[*n].option, best_[m].option}) {
      trial_ = best_;
      Message& into = trial_[*n];
      into.begin = best_[m].begin;
      into.option = option;
      if (!job_.admits(into.line, into.end, static_cast<size_t>(option))) continue;
      job_.complete(into);
      trial_.erase(trial_.begin() + static_cast<std::ptrdiff_t>(m));
      if (try_it()) return true;
      if (best_[*n].option == best_[m].option) break;
    }
    return false;
  }

  bool try_end(size_t m, int64_t end) {
    const auto n = next_of(m);
    if (!n || is_over() || end <= best_[m].begin || end >= best_[*n].end || end == best_[m].end) return false;
    trial_ = best_;
    trial_[m].end = trial_[*n].begin = end;
    job_.complete(trial_[m]);
    job_.complete(trial_[*n]);
    if (!job_.admits(trial_[m].line, end, static_cast<size_t>(trial_[m].option))) return false;
    // It may now be ready at another time.
    if (trial_[m].last_tensor != best_[m].last_tensor) sort(trial_);
    return try_it();
  }

  // Moves the end by tensors, and by shares of both messages.
  bool move_end(size_t m) {
    if (!next_of(m)) return false;
    bool helped = false;
    for (const int by : {1, -1, 3, -3, 9, -9}) {
      const Line& line = job_.lines()[best_[m].line];
      const auto at = static_cast<int64_t>(line.at(best_[m].end)) + by +
                      (by < 0 && line.begins[line.at(best_[m].end)] != best_[m].end ? 1 : 0);
      if (at <= 0 || at >= static_cast<int64_t>(line.tensors.size())) continue;
      helped |= try_end(m, line.begins[static_cast<size_t>(at)]);
      if (m >= best_.size() || !next_of(m)) return helped;
    }
    for (const int64_t part : {2, 4, 8, 16, 64}) {
      const int64_t mine = best_[m].end - best_[m].begin;
      helped |= try_end(m, best_[m].end - std::max<int64_t>(mine / part, 1));
      const auto n = next_of(m);
      if (!n) return helped;
      helped |= try_end(m, best_[m].end + std::max<int64_t>((best_[*n].end - best_[*n].begin) / part, 1));
      if (!next_of(m)) return helped;
    }
    return helped;
  }

  bool hold(size_t m) {
    bool helped = false;
    const auto try_from = [&](double us) {
      if (is_over() || us == best_[m].not_before_us) return false;
      trial_ = best_;
      trial_[m].not_before_us = us;
      return try_it();
    };
    if (best_[m].not_before_us > 0) helped |= try_from(0);
    for (size_t by = 1; m + by < best_.size(); by *= 2) {
      helped |= try_from(job_.ready_us()[best_[m + by].last_tensor]);
    }
    helped |= try_from(job_.ready_us().back());
    return helped;
  }

  // Splits into two messages. Either may get its fastest option, and the first may wait for backward.
  bool split_at(size_t m, int64_t at) {
    const Message whole = best_[m];
    if (at <= whole.begin || at >= whole.end) return false;
    Message first = whole, second = whole;
    first.end = second.begin = at;
    const int32_t first_fastest = job_.fastest(first), second_fastest = job_.fastest(second);
    for (const auto& [first_option, second_option] :
         {std::pair(whole.option, whole.option), std::pair(first_fastest, whole.option),
          std::pair(whole.option, second_fastest), std::pair(first_fastest, second_fastest)}) {
      first.option = first_option;
      second.option = second_option;
      if (!job_.admits(first.line, first.end, static_cast<size_t>(first_option))) continue;
      job_.complete(first);
      job_.complete(second);
      for (const bool holds : {false, true}) {
        if (is_over()) return false;
        trial_ = best_;
        trial_[m] = second;
        first.not_before_us = holds ? job_.ready_us().back() : whole.not_before_us;
        trial_.insert(trial_.begin() + static_cast<std::ptrdiff_t>(m), first);
        if (first.last_tensor != whole.last_tensor) sort(trial_);
        if (try_it()) return true;
      }
      if (first_fastest == whole.option && second_fastest == whole.option) break;
    }
    return false;
  }

  bool split(size_t m) {
    const Message whole = best_[m];
    const Line& line = job_.lines()[whole.line];
    const int64_t size = whole.end - whole.begin;
    const size_t last = line.at(whole.end - 1), first = line.at(whole.begin);
    const std::array<int64_t, 9> places = {line.begins[last],
                                           line.begins[first + 1],
                                           line.begins[(first + last + 1) / 2],
                                           line.begins[(first + 3 * last + 1) / 4],
                                           line.begins[(3 * first + last + 1) / 4],
                                           whole.begin + size / 2,
                                           whole.begin + size / 4,
                                           whole.begin + size - size / 4,
                                           whole.begin + size - size / 16};
    for (const int64_t at : places) {
      if (split_at(m, at)) return true;
    }
    return false;
  }

  bool change_option(size_t m) {
    bool helped = false;
    const size_t options = job_.model().options().size();
    for (size_t o = 0; o < options && options > 1; ++o) {
      if (is_over() || static_cast<int32_t>(o) == best_[m].option || !job_.admits(best_[m].line, best_[m].end, o))
        continue;
      trial_ = best_;
      trial_[m].option = static_cast<int32_t>(o);
      job_.complete(trial_[m]);
      helped |= try_it();
    }
    return helped;
  }

  const Job& job_;
  Replay& replay_;
  const int64_t most_;
  const double enough_us_;
  Messages best_, trial_;
  double best_us_ = kInfinity;
};

// No plan ends earlier, if larger messages never take longer than their parts: the gradients that are ready after
// some moment pass the channel in one message, and the rest of forward follows.
double least_end_us(const Job& job) {
  const auto& tensors = job.table().tensors;
  double least_us = job.whole_us() + job.ready_us().back();
  double after_us = kInfinity;
  int64_t numel = 0;
  for (size_t t = tensors.size(); t-- > 0;) {
    if (tensors[t].numel == 0) continue;
    numel += tensors[t].numel;
    after_us = std::min(after_us, job.after_us(t));
    double link_us = kInfinity;
    for (size_t o = 0; o < job.model().options().size(); ++o) {
      link_us = std::min(link_us, job.model().work(o, numel, tensors[t].dtype)[kLink]);
    }
    least_us = std::max(least_us, job.ready_us()[t] + link_us + after_us);
  }
  return least_us;
}

// A strategy's buckets, without its order.
std::optional<Messages> messages_of(const core::Strategy& strategy, const Job& job) {
  Messages messages;
  for (const core::Bucket& bucket : strategy.buckets) {
    const core::DType dtype = core::dtype_of(bucket, job.table());
    const auto line = std::ranges::find(job.lines(), dtype, &Line::dtype);
    const auto option = number_of(bucket.option, job.model());
    if (line == job.lines().end() || !option) return {};
    const core::Slice& first = bucket.slices.front();
    const auto tensor = std::ranges::lower_bound(line->tensors, first.tensor);
    const int64_t begin = line->begins[static_cast<size_t>(tensor - line->tensors.begin())] + first.offset;
    Message message{.line = static_cast<size_t>(line - job.lines().begin()),
                    .begin = begin,
                    .end = begin + core::numel(bucket),
                    .option = static_cast<int32_t>(*option)};
    job.complete(message);
    messages.push_back(message);
  }
  sort(messages);
  return messages;
}

// Makes a few random changes: merges, cuts, other options, and messages that leave before others or after backward.
Messages changed(Messages messages, const Job& job, core::Rng& rng) {
  const size_t options = job.model().options().size();
  for (uint64_t changes = 1 + rng.below(5); changes > 0; --changes) {
    const auto m = static_cast<size_t>(rng.below(messages.size()));
    Message& message = messages[m];
    switch (rng.below(4)) {
      case 0: {
        const auto next = std::ranges::find_if(
            messages, [&](const Message& other) { return other.line == message.line && other.begin == message.end; });
        if (next == messages.end()) break;
        next->begin = message.begin;
        if (job.admits(next->line, next->end, static_cast<size_t>(message.option)) && rng.below(2) == 0)
          next->option = message.option;
        job.complete(*next);
        messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(m));
        break;
      }
      case 1: {
        if (message.end - message.begin < 2) break;
        Message first = message;
        const Line& line = job.lines()[message.line];
        int64_t at =
            message.begin + 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(message.end - message.begin - 1)));
        if (line.begins[line.at(at)] > message.begin) at = line.begins[line.at(at)];
        first.end = message.begin = at;
        job.complete(first);
        job.complete(message);
        messages.push_back(first);
        sort(messages);
        break;
      }
      case 2: {
        const auto option = static_cast<size_t>(rng.below(options));
        if (!job.admits(message.line, message.end, option)) break;
        message.option = static_cast<int32_t>(option);
        job.complete(message);
        break;
      }
      default: message.not_before_us = job.ready_us()[messages[rng.below(messages.size())].last_tensor];
    }
  }
  return messages;
}

// Each tensor under the fastest option for its message.
Messages apart(const Job& job) {
  Messages messages;
  for (size_t l = 0; l < job.lines().size(); ++l) {
    const Line& line = job.lines()[l];
    for (size_t t = 0; t < line.tensors.size(); ++t) {
      Message message{.line = l, .begin = line.begins[t], .end = line.begins[t + 1]};
      message.option = job.fastest(message);
      job.complete(message);
      messages.push_back(message);
    }
  }
  sort(messages);
  return messages;
}

// The options of the first plans: those that take the least time for an eighth of the gradient.
std::vector<size_t> promising(const CostModel& model, int64_t numel, core::DType dtype) {
  constexpr size_t kMost = 4;
  std::vector<std::pair<double, size_t>> ranked;
  for (size_t o = 0; o < model.options().size(); ++o) {
    const Work work = model.work(o, std::max<int64_t>(numel / 8, 1), dtype);
    ranked.emplace_back(std::accumulate(work.begin(), work.end(), 0.0), o);
  }
  std::ranges::sort(ranked);
  std::vector<size_t> options;
  for (size_t i = 0; i < std::min(ranked.size(), kMost); ++i) options.push_back(ranked[i].second);
  return options;
}

core::Bucket bucket_of(const Message& message, const Job& job) {
  core::Bucket bucket{.slices = {}, .option = job.model().options()[static_cast<size_t>(message.option)]};
  const Line& line = job.lines()[message.line];
  for (int64_t at = message.begin; at < message.end;) {
    const size_t position = line.at(at);
    const int64_t end = std::min(message.end, line.begins[position + 1]);
    bucket.slices.push_back({line.tensors[position], at - line.begins[position], end - at});
    at = end;
  }
  return bucket;
}

}  // namespace

Sent search_overlap(const CostModel& model, const core::GradientTable& table, std::span<const core::Strategy> starts,
                    const OverlapOptions& options) {
  const Job job(model, table);
  if (job.lines().empty()) return {};
  Replay replay(job);
  std::vector<std::pair<double, Messages>> plans;
  const auto add = [&](Messages messages) {
    const double us = replay.end_us(messages);
    plans.emplace_back(us, std::move(messages));
  };
  for (const core::Strategy& start : starts) {
    if (auto messages = messages_of(start, job)) add(std::move(*messages));
  }
  add(apart(job));
  const core::DType dtype = job.lines()[0].dtype;
  for (const size_t o : promising(model, table.numel(), dtype)) {
    const double latency_us = model.work(o, 1, dtype)[kLink];
    const double floor_us = model.work(o, table.numel(), dtype)[kLink] / 100;
    for (const double least : {0.0, 0.5, 1.0, 2.0, 4.0, 8.0}) {
      for (const double most : {1.0, 4.0, 16.0, kInfinity}) {
        const double least_us = std::max(least * latency_us, floor_us), most_us = std::max(most * latency_us, floor_us);
        add(fill_gaps(job, {.option = static_cast<int32_t>(o), .least_us = least_us, .most_us = most_us}));
      }
    }
  }
  // The most promising ones share half of the work, others get the rest of that half, and the remaining work goes to
  // random changes of the best one.
  constexpr size_t kMostPromising = 3;
  std::ranges::stable_sort(plans, {}, [](const auto& plan) { return plan.first; });
  Messages best = plans.front().second;
  double best_us = plans.front().first;
  const double enough_us = kEnough * least_end_us(job);
  const int64_t begun = replay.work(), middle = begun + (options.most_work - begun) / 2;
  const auto climb = [&](Messages messages, int64_t until) {
    const double us = Climb(job, replay, until, enough_us).run(messages);
    if (us < best_us) {
      best_us = us;
      best = std::move(messages);
    }
  };
  for (size_t p = 0; p < plans.size() && best_us > enough_us && replay.work() < middle; ++p) {
    if (p > 0 && plans[p].first == plans[p - 1].first) continue;
    const auto share = static_cast<int64_t>(std::min(p + 1, kMostPromising));
    climb(std::move(plans[p].second), begun + (middle - begun) * share / static_cast<int64_t>(kMostPromising));
  }
  core::Rng rng(kSeed);
  while (best_us > enough_us && replay.work() < options.most_work) climb(changed(best, job, rng), options.most_work);
  std::vector<size_t> order;
  std::vector<double> there_us;
  replay.end_us(best, &order, &there_us);
  Sent sent;
  const double backward_us = job.ready_us().back();
  for (size_t i = 0; i < order.size(); ++i) {
    sent.push_back(bucket_of(best[order[i]], job));
    const bool is_read = std::ranges::all_of(sent.back().slices, [&](const core::Slice& slice) {
      return table.tensors[static_cast<size_t>(slice.tensor)].read_us >= 0;
    });
    if (is_read && can_be_late(sent.back().option) && there_us[i] > backward_us) sent.back().due = core::Due::forward;
  }
  return sent;
}

}  // namespace gradtune::policies
