// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/espresso.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

namespace gradtune::policies {
namespace {

// A plan with a message for each tensor, and the lanes before each message, so that a change costs a replay of what
// follows only.
class Replay {
 public:
  Replay(const CostModel& model, std::span<const Atom> tensors)
      : model_(model), tensors_(tensors), options_(tensors.size(), 0), before_(tensors.size() + 1) {
    resume(0);
  }

  int32_t option(size_t tensor) const { return options_[tensor]; }
  double end_us() const { return before_.back().end_us(last_ready_us()); }

  double end_us_with(size_t tensor, int32_t option) const {
    Lanes lanes = before_[tensor];
    lanes.send(work(tensor, option), tensors_[tensor].ready_us);
    for (size_t t = tensor + 1; t < tensors_.size(); ++t) lanes.send(work(t, options_[t]), tensors_[t].ready_us);
    return lanes.end_us(last_ready_us());
  }

  void set(size_t tensor, int32_t option) {
    options_[tensor] = option;
    resume(tensor);
  }

  // The first tensor behind the last gap of the link; 0 where it never waits.
  size_t behind_last_gap() const {
    for (size_t t = tensors_.size(); t-- > 1;) {
      const Work used = work(t, options_[t]);
      if (used[kLink] <= 0) continue;
      const auto& after = before_[t + 1].us;
      const double arrives_us = used[kHost] > 0 ? after[kHost] : tensors_[t].ready_us + after[kBackward];
      if (arrives_us > before_[t].us[kLink]) return t;
    }
    return 0;
  }

 private:
  double last_ready_us() const { return tensors_.back().ready_us; }
  Work work(size_t tensor, int32_t option) const {
    return model_.work(static_cast<size_t>(option), tensors_[tensor].numel);
  }

  void resume(size_t from) {
    for (size_t t = from; t < tensors_.size(); ++t) {
      before_[t + 1] = before_[t];
      before_[t + 1].send(work(t, options_[t]), tensors_[t].ready_us);
    }
  }

  const CostModel& model_;
  const std::span<const Atom> tensors_;
  std::vector<int32_t> options_;
  std::vector<Lanes> before_;
};

Plan as_plan(const std::vector<int32_t>& options, double end_us) {
  Plan plan{.messages = {}, .end_us = end_us};
  for (size_t t = 0; t < options.size(); ++t) {
    plan.messages.push_back({static_cast<int32_t>(t), static_cast<int32_t>(t), options[t]});
  }
  return plan;
}

}  // namespace

Plan choose_options(const CostModel& model, std::span<const Atom> tensors) {
  if (tensors.empty()) return {};
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::pair(tensors[a].numel, a) > std::pair(tensors[b].numel, b); });
  Replay replay(model, tensors);
  std::vector<bool> closed(tensors.size(), false);
  const auto close = [&] {
    const size_t end = replay.behind_last_gap();
    for (size_t t = 0; t < end; ++t) closed[t] = closed[t] || replay.option(t) == 0;
  };
  close();
  for (const size_t tensor : order) {
    if (closed[tensor]) continue;
    int32_t best = 0;
    double best_us = replay.end_us();
    for (int32_t option = 1; option < static_cast<int32_t>(model.options().size()); ++option) {
      if (tensors[tensor].is_small && model.loses(static_cast<size_t>(option))) continue;
      const double end_us = replay.end_us_with(tensor, option);
      if (end_us < best_us) std::tie(best, best_us) = std::pair(option, end_us);
    }
    if (best == 0) continue;
    replay.set(tensor, best);
    close();
  }
  std::vector<int32_t> options;
  for (size_t t = 0; t < tensors.size(); ++t) options.push_back(replay.option(t));
  return as_plan(options, replay.end_us());
}

Plan offload(const CostModel& model, std::span<const Atom> tensors, const Plan& plan, int64_t most_replays) {
  // The members of each group, in the order of backward.
  std::map<std::pair<int64_t, int32_t>, std::vector<size_t>> groups;
  std::vector<int32_t> options;
  for (const Message& message : plan.messages) {
    core::check(message.first == message.last, "Espresso's offload moves tensors that are not merged");
    const auto tensor = static_cast<size_t>(message.first);
    options.push_back(message.option);
    if (model.on_host(static_cast<size_t>(message.option))) {
      groups[{tensors[tensor].numel, message.option}].push_back(tensor);
    }
  }
  if (groups.empty()) return plan;

  const double per_group = std::pow(static_cast<double>(most_replays), 1.0 / static_cast<double>(groups.size()));
  struct Group {
    std::vector<size_t> members;
    int32_t host;
    std::vector<size_t> counts;  // that are tried
  };
  std::vector<Group> choices;
  for (auto& [key, members] : groups) {
    Group group{std::move(members), static_cast<int32_t>(*model.on_host(static_cast<size_t>(key.second))), {}};
    const size_t all = group.members.size() + 1;
    const size_t tried = std::min(all, std::max<size_t>(2, static_cast<size_t>(per_group)));
    for (size_t i = 0; i < tried; ++i) group.counts.push_back(i * (all - 1) / (tried - 1));
    choices.push_back(std::move(group));
  }

  std::vector<size_t> at(choices.size(), 0);
  Plan best = plan;
  for (size_t g = 0; g < choices.size();) {
    std::vector<int32_t> moved = options;
    for (size_t i = 0; i < choices.size(); ++i) {
      for (size_t m = 0; m < choices[i].counts[at[i]]; ++m) moved[choices[i].members[m]] = choices[i].host;
    }
    Plan candidate = as_plan(moved, 0);
    candidate.end_us = replay_us(model, tensors, candidate.messages);
    if (candidate.end_us < best.end_us) best = std::move(candidate);
    for (g = 0; g < choices.size() && ++at[g] == choices[g].counts.size(); ++g) at[g] = 0;
  }
  return best;
}

}  // namespace gradtune::policies
