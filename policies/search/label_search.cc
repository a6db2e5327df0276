// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/label_search.h"

#include <limits>

namespace gradtune::policies {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kFirstWidth = 4;

struct Label {
  Lanes lanes;
  double least_end_us = 0;  // no plan that begins like this ends earlier
  int32_t first = 0;        // of the last message
  int32_t option = 0;       // of the last message
  int32_t parent = -1;      // among the labels of prefix `first`
};

bool no_worse(const Lanes& a, const Lanes& b) {
  bool all = true;
  for (size_t lane = 0; lane < kLanes; ++lane) all &= a.us[lane] <= b.us[lane];
  return all;
}

bool no_worse(const Work& a, const Work& b) {
  bool all = true;
  for (size_t lane = 0; lane < kLanes; ++lane) all &= a[lane] <= b[lane];
  return all;
}

// Labels of one prefix, none of which dominates another in every lane, the most promising first, up to `width_`.
class Front {
 public:
  explicit Front(size_t width) : width_(width) {}

  const std::vector<Label>& labels() const { return labels_; }
  double least_dropped_us() const { return least_dropped_us_; }

  // True if labels with at least that lower bound would change nothing here.
  bool is_past(double least_end_us) const {
    return labels_.size() == width_ && least_end_us > labels_.back().least_end_us && least_end_us >= least_dropped_us_;
  }
  // The minimum over all labels, in each lane.
  Lanes least() const {
    Lanes least;
    least.us.fill(kInfinity);
    for (const Label& label : labels_) {
      for (size_t lane = 0; lane < kLanes; ++lane) least.us[lane] = std::min(least.us[lane], label.lanes.us[lane]);
    }
    return least;
  }

  void add(const Label& label) {
    const bool full = labels_.size() == width_;
    if (full && !promises_more(label, labels_.back())) return drop(label);
    const auto place =
        std::find_if(labels_.begin(), labels_.end(), [&](const Label& other) { return promises_more(label, other); });
    const auto dominates = [&](const Label& other) { return no_worse(other.lanes, label.lanes); };
    // A dominated label has no better lower bound.
    if (std::any_of(labels_.begin(), place, dominates)) return;
    const auto at = labels_.insert(place, label);
    labels_.erase(
        std::remove_if(at + 1, labels_.end(), [&](const Label& other) { return no_worse(label.lanes, other.lanes); }),
        labels_.end());
    if (labels_.size() <= width_) return;
    drop(labels_.back());
    labels_.pop_back();
  }

 private:
  static double sum_us(const Label& label) {
    const auto& us = label.lanes.us;
    return us[kBackward] + us[kHost] + us[kLink] + us[kUnpack];
  }
  static bool promises_more(const Label& a, const Label& b) {
    return a.least_end_us < b.least_end_us || (a.least_end_us == b.least_end_us && sum_us(a) < sum_us(b));
  }
  void drop(const Label& label) { least_dropped_us_ = std::min(least_dropped_us_, label.least_end_us); }

  size_t width_;
  std::vector<Label> labels_;
  double least_dropped_us_ = kInfinity;
};

// The work of every message that may be sent, without options that another one dominates in every lane.
class Messages {
 public:
  struct Choice {
    Work work;
    int32_t option;
  };

  Messages(const CostModel& model, std::span<const Atom> atoms, bool merges) : merges_(merges), size_(atoms.size()) {
    const size_t options = model.options().size();
    std::vector<Work> work(options);
    const size_t messages = merges_ ? size_ * (size_ + 1) / 2 : size_;
    first_choice_.reserve(messages + 1);
    choices_.reserve(2 * messages);
    first_choice_.push_back(0);
    for (size_t end = 1; end <= size_; ++end) {
      int64_t numel = 0;
      bool has_small = false, is_mixed = false;
      for (size_t first = end; first-- > least_first(end);) {
        is_mixed = is_mixed || atoms[first].dtype != atoms[end - 1].dtype;
        if (is_mixed) {
          first_choice_.push_back(choices_.size());
          continue;
        }
        numel += atoms[first].numel;
        has_small = has_small || atoms[first].is_small;
        for (size_t o = 0; o < options; ++o) work[o] = model.work(o, numel, atoms[first].dtype);
        const auto is_admitted = [&](size_t o) { return !(has_small && model.loses(o)); };
        for (size_t o = 0; o < options; ++o) {
          // If two options are equal, the first one stays.
          bool beaten = !is_admitted(o);
          for (size_t p = 0; p < options && !beaten; ++p) {
            beaten = p != o && is_admitted(p) && no_worse(work[p], work[o]) && (p < o || !no_worse(work[o], work[p]));
          }
          if (!beaten) choices_.push_back({work[o], static_cast<int32_t>(o)});
        }
        first_choice_.push_back(choices_.size());
      }
    }
  }

  size_t least_first(size_t end) const { return merges_ ? 0 : end - 1; }

  // The choices for the message of atoms [first, end).
  std::span<const Choice> choices(size_t first, size_t end) const {
    const size_t row = merges_ ? end * (end - 1) / 2 : end - 1;
    const size_t at = row + (end - 1 - first);
    return {choices_.data() + first_choice_[at], first_choice_[at + 1] - first_choice_[at]};
  }

 private:
  const bool merges_;
  const size_t size_;
  std::vector<Choice> choices_;
  std::vector<size_t> first_choice_;
};

class Search {
 public:
  Search(const CostModel& model, std::span<const Atom> atoms, const SearchOptions& options)
      : atoms_(atoms), options_(options), messages_(model, atoms, options.merges), least_(atoms.size() + 1) {
    const size_t size = atoms.size();
    for (size_t first = size; first-- > 0;) {
      Least& least = least_[first];
      least.work.fill(kInfinity);
      least.to_last_us = kInfinity;
      for (size_t end = first + 1; end <= size && messages_.least_first(end) <= first; ++end) {
        for (const Messages::Choice& choice : messages_.choices(first, end)) {
          const Work& work = choice.work;
          for (size_t lane = 0; lane < kLanes; ++lane) {
            least.work[lane] = std::min(least.work[lane], work[lane] + least_[end].work[lane]);
          }
          const double rest_us = end == size ? work[kHost] + work[kLink] + work[kUnpack] : least_[end].to_last_us;
          least.to_last_us = std::min(least.to_last_us, work[kBackward] + rest_us);
        }
      }
      least.after_ready_us = std::max(atoms[first].ready_us + least.work[kLink], least_[first + 1].after_ready_us);
    }
  }

  SearchResult run() {
    SearchResult result;
    double best_us = options_.known_us;
    for (size_t width = kFirstWidth; made_ == 0 || made_ < options_.most_work; width *= 2) {
      const double least_dropped_us = fill(width, best_us);
      if (!labels_.back().labels().empty()) {
        result.plans = plans();
        improve(result.plans[0]);
        best_us = result.plans[0].end_us;
      }
      result.least_us = std::max(result.least_us, std::min(best_us, least_dropped_us));
      if (best_us - result.least_us <= options_.tolerance * best_us) break;
    }
    return result;
  }

 private:
  double last_ready_us() const { return atoms_.back().ready_us; }

  // Lower bounds for the atoms after a prefix, over all their partitions.
  struct Least {
    Work work{};                // of each lane
    double to_last_us = 0;      // delays of backward, and all other work of the last message
    double after_ready_us = 0;  // the time at which the link is done if backward has no further delay
  };

  double least_end_us(const Lanes& lanes, size_t prefix) const {
    const Least& least = least_[prefix];
    const double delay_us = lanes.us[kBackward];
    return std::max({last_ready_us() + delay_us + least.to_last_us, delay_us + least.after_ready_us,
                     lanes.us[kHost] + least.work[kHost], lanes.us[kLink] + least.work[kLink],
                     lanes.us[kUnpack] + least.work[kUnpack]});
  }

  double end_us(std::span<const Message> messages) const {
    Lanes lanes;
    for (const Message& message : messages) {
      const auto choices = choices_of(message);
      const auto chosen = std::ranges::find(choices, message.option, &Messages::Choice::option);
      lanes.send(chosen->work, atoms_[static_cast<size_t>(message.last)].ready_us);
    }
    return lanes.end_us(last_ready_us());
  }
  std::span<const Messages::Choice> choices_of(const Message& message) const {
    return messages_.choices(static_cast<size_t>(message.first), static_cast<size_t>(message.last) + 1);
  }

  // Moves the ends of messages, and changes their options if that is better, as long as the plan ends earlier. The
  // plans of the labels that were kept are often close to a better one, and a better plan bounds the next round.
  void improve(Plan& plan) const {
    constexpr int32_t kSteps[] = {-4, -1, 1, 4};
    for (bool helped = true; helped;) {
      helped = false;
      for (size_t m = 0; m + 1 < plan.messages.size(); ++m) {
        for (const int32_t step : kSteps) helped |= move_end(plan, m, step);
      }
    }
  }

  // Moves the end of message `m` by `by` atoms.
  bool move_end(Plan& plan, size_t m, int32_t by) const {
    const Message mine = plan.messages[m], next = plan.messages[m + 1];
    if (mine.last + by < mine.first || mine.last + by >= next.last) return false;
    bool helped = false;
    Plan moved = plan;
    moved.messages[m].last += by;
    moved.messages[m + 1].first += by;
    for (const Messages::Choice& choice : choices_of(moved.messages[m])) {
      for (const Messages::Choice& next_choice : choices_of(moved.messages[m + 1])) {
        moved.messages[m].option = choice.option;
        moved.messages[m + 1].option = next_choice.option;
        moved.end_us = end_us(moved.messages);
        if (!(moved.end_us < plan.end_us)) continue;
        plan = moved;
        helped = true;
      }
    }
    return helped;
  }

  // Computes the labels of all prefixes, at most `width` each. A plan that ends at `known_us` is known already.
  // Returns the least end of plans that begin like a label that was dropped for lack of room.
  double fill(size_t width, double known_us) {
    labels_.resize(atoms_.size() + 1, Front(0));
    labels_[0] = Front(1);
    labels_[0].add({});
    least_lanes_.clear();
    double least_dropped_us = kInfinity;
    for (size_t end = 1; end <= atoms_.size(); ++end) {
      labels_[end] = Front(width);
      least_lanes_.push_back(labels_[end - 1].least());
      for (size_t first = messages_.least_first(end); first < end; ++first) extend(first, end, known_us);
      least_dropped_us = std::min(least_dropped_us, labels_[end].least_dropped_us());
    }
    return least_dropped_us;
  }

  void extend(size_t first, size_t end, double known_us) {
    const double ready_us = atoms_[end - 1].ready_us;
    for (const Messages::Choice& choice : messages_.choices(first, end)) {
      const std::vector<Label>& from = labels_[first].labels();
      made_ += static_cast<int64_t>(from.size());
      // Earlier lanes never end later, so a bound that the minimum of all lanes does not reach, no label reaches.
      Lanes least = least_lanes_[first];
      least.send(choice.work, ready_us);
      const double least_of_all_us = least_end_us(least, end);
      if (least_of_all_us >= known_us || labels_[end].is_past(least_of_all_us)) continue;
      for (size_t l = 0; l < from.size(); ++l) {
        Lanes lanes = from[l].lanes;
        lanes.send(choice.work, ready_us);
        const double least_us = least_end_us(lanes, end);
        if (least_us >= known_us) continue;
        labels_[end].add({lanes, least_us, static_cast<int32_t>(first), choice.option, static_cast<int32_t>(l)});
      }
    }
  }

  // The plans of the last prefix's labels, best first.
  std::vector<Plan> plans() const {
    std::vector<Plan> plans;
    for (const Label& end : labels_.back().labels()) {
      if (static_cast<int>(plans.size()) == options_.most_plans) break;
      Plan plan{.messages = {}, .end_us = end.lanes.end_us(last_ready_us())};
      size_t prefix = atoms_.size();
      for (const Label* label = &end; label->parent >= 0;) {
        plan.messages.push_back({label->first, static_cast<int32_t>(prefix) - 1, label->option});
        prefix = static_cast<size_t>(label->first);
        label = &labels_[prefix].labels()[static_cast<size_t>(label->parent)];
      }
      std::reverse(plan.messages.begin(), plan.messages.end());
      plans.push_back(std::move(plan));
    }
    return plans;
  }

  const std::span<const Atom> atoms_;
  const SearchOptions options_;
  const Messages messages_;
  std::vector<Least> least_;
  std::vector<Front> labels_;       // of each prefix
  std::vector<Lanes> least_lanes_;  // of these labels
  int64_t made_ = 0;
};

}  // namespace

SearchResult search_labels(const CostModel& model, std::span<const Atom> atoms, const SearchOptions& options) {
  if (atoms.empty()) return {.plans = {Plan{}}, .least_us = 0};
  return Search(model, atoms, options).run();
}

double replay_us(const CostModel& model, std::span<const Atom> atoms, std::span<const Message> messages) {
  Lanes lanes;
  for (const Message& message : messages) {
    int64_t numel = 0;
    for (int32_t a = message.first; a <= message.last; ++a) numel += atoms[static_cast<size_t>(a)].numel;
    const core::DType dtype = atoms[static_cast<size_t>(message.last)].dtype;
    lanes.send(model.work(static_cast<size_t>(message.option), numel, dtype),
               atoms[static_cast<size_t>(message.last)].ready_us);
  }
  return lanes.end_us(atoms.empty() ? 0 : atoms.back().ready_us);
}

}  // namespace gradtune::policies
