// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/espresso_search.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace gradtune::policies {
namespace {

// A plan with one message for each tensor, and the lanes before each message, so that a change requires a replay of
// only the later messages.
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

  // The first tensor after the last gap of the link; 0 if the link never waits.
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
    return model_.work(static_cast<size_t>(option), tensors_[tensor].numel, tensors_[tensor].dtype);
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

// Equal tensors, in the order of backward, and their option on the host.
struct Group {
  std::vector<size_t> members = {};
  int32_t host = 0;
};

// For each group, the number of members on the host, which are the first ones; and the best combination tried.
class Offload {
 public:
  Offload(const CostModel& model, std::span<const Atom> tensors, const Plan& plan, std::vector<Group> groups)
      : model_(model),
        tensors_(tensors),
        start_(plan),
        best_(plan),
        groups_(std::move(groups)),
        moved_(groups_.size()) {}

  // True if there are more combinations than `most`.
  bool has_more_than(int64_t most) const {
    for (const Group& group : groups_) most /= static_cast<int64_t>(group.members.size()) + 1;
    return most < 1;
  }

  void try_all() {
    for (size_t g = 0; g < groups_.size();) {
      try_it();
      for (g = 0; g < groups_.size() && ++moved_[g] > groups_[g].members.size(); ++g) moved_[g] = 0;
    }
  }

  // Tries all counts of one group while the others stay, group by group, until nothing helps.
  void try_group_by_group(int64_t most_replays) {
    for (bool helped = true; helped;) {
      helped = false;
      for (size_t g = 0; g < groups_.size(); ++g) {
        const size_t before = moved_[g];
        size_t best = before;
        for (size_t count = 0; count <= groups_[g].members.size() && replays_ < most_replays; ++count) {
          if (count == before) continue;
          moved_[g] = count;
          if (try_it()) best = count;
        }
        moved_[g] = best;
        helped = helped || best != before;
      }
    }
  }

  const Plan& best() const { return best_; }

 private:
  bool try_it() {
    ++replays_;
    Plan candidate = start_;
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (size_t m = 0; m < moved_[g]; ++m) candidate.messages[groups_[g].members[m]].option = groups_[g].host;
    }
    candidate.end_us = replay_us(model_, tensors_, candidate.messages);
    if (!(candidate.end_us < best_.end_us)) return false;
    best_ = std::move(candidate);
    return true;
  }

  const CostModel& model_;
  const std::span<const Atom> tensors_;
  const Plan& start_;
  Plan best_;
  const std::vector<Group> groups_;
  std::vector<size_t> moved_;  // for each group
  int64_t replays_ = 0;
};

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
      const auto number = static_cast<size_t>(option);
      if (core::uses_host(model.options()[number])) continue;
      if (tensors[tensor].is_small && model.loses(number)) continue;
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
  std::map<std::tuple<int64_t, core::DType, int32_t>, Group> alike;
  for (size_t m = 0; m < plan.messages.size(); ++m) {
    const Message& message = plan.messages[m];
    core::check(message.first == message.last, "Espresso's offload moves tensors that are not merged");
    const auto host = model.on_host(static_cast<size_t>(message.option));
    if (!host) continue;
    const Atom& tensor = tensors[static_cast<size_t>(message.first)];
    Group& group = alike[{tensor.numel, tensor.dtype, message.option}];
    group.members.push_back(m);
    group.host = static_cast<int32_t>(*host);
  }
  if (alike.empty()) return plan;
  std::vector<Group> groups;
  for (auto& [key, group] : alike) groups.push_back(std::move(group));
  Offload search(model, tensors, plan, std::move(groups));
  if (search.has_more_than(most_replays)) {
    search.try_group_by_group(most_replays);
  } else {
    search.try_all();
  }
  return search.best();
}

}  // namespace gradtune::policies
