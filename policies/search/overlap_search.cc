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

namespace gradtune::policies {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kFixedWork = 10;  // of a replay, in messages
constexpr double kEnough = 1.001;   // of the least end that there can be
constexpr uint64_t kSeed = 35;
constexpr double kHelps = 1 - 1e-9;  // of the end so far

// The gradients of one dtype, one behind the other.
struct Line {
  core::DType dtype;
  std::vector<int32_t> tensors;
  std::vector<int64_t> begins;  // of each tensor, and the end of the last one

  int64_t numel() const { return begins.back(); }
  // Of the tensor that holds that element.
  size_t at(int64_t element) const {
    return static_cast<size_t>(std::upper_bound(begins.begin(), begins.end(), element) - begins.begin()) - 1;
  }
};

// Elements [begin, end) of a line.
struct Message {
  size_t line = 0;
  int64_t begin = 0, end = 0;
  int32_t option = 0;
  double not_before_us = 0;
  // What follows from that.
  Work work{};
  size_t last_tensor = 0;
  double after_us = 0;  // of forward and updates, once it is there
};
using Messages = std::vector<Message>;  // by their last tensors, those of a line one behind the other

class Job {
 public:
  Job(const CostModel& model, const core::GradientTable& table)
      : model_(model),
        table_(table),
        first_small_(table.first_small()),
        ready_us_(ready_times_us(table)),
        forward_(forward_pass(table)) {
    for (const core::Option& option : model.options()) can_be_late_.push_back(can_be_late(option));
    for (const core::DType dtype : core::kDTypes) {
      Line line{.dtype = dtype, .tensors = {}, .begins = {0}};
      for (size_t t = 0; t < table.tensors.size(); ++t) {
        if (table.tensors[t].dtype != dtype || table.tensors[t].numel == 0) continue;
        line.tensors.push_back(static_cast<int32_t>(t));
        line.begins.push_back(line.begins.back() + table.tensors[t].numel);
      }
      if (line.tensors.empty()) continue;
      most_after_.push_back(make_most_after(line));
      lines_.push_back(std::move(line));
    }
  }

  const std::vector<Line>& lines() const { return lines_; }
  const std::vector<double>& ready_us() const { return ready_us_; }
  double after_us(size_t tensor) const { return forward_.after_us[tensor]; }
  double whole_us() const { return forward_.whole_us; }
  const CostModel& model() const { return model_; }
  const core::GradientTable& table() const { return table_; }

  bool admits(size_t line, int64_t end, size_t option) const {
    const auto last = static_cast<size_t>(lines_[line].tensors[lines_[line].at(end - 1)]);
    return last < first_small_ || !model_.loses(option);
  }

  // The option that takes such a message least, all lanes together.
  int32_t fastest(const Message& message) const {
    int32_t fastest = 0;
    double least_us = std::numeric_limits<double>::infinity();
    for (size_t o = 0; o < model_.options().size(); ++o) {
      const Work work = model_.work(o, message.end - message.begin, lines_[message.line].dtype);
      const double us = std::accumulate(work.begin(), work.end(), 0.0);
      if (us >= least_us || !admits(message.line, message.end, o)) continue;
      least_us = us;
      fastest = static_cast<int32_t>(o);
    }
    return fastest;
  }

  void complete(Message& message) const {
    const Line& line = lines_[message.line];
    const size_t first = line.at(message.begin), last = line.at(message.end - 1);
    message.last_tensor = static_cast<size_t>(line.tensors[last]);
    message.after_us =
        can_be_late_[static_cast<size_t>(message.option)] ? most_after(message.line, first, last) : forward_.whole_us;
    message.work = model_.work(static_cast<size_t>(message.option), message.end - message.begin, line.dtype);
  }

 private:
  // Of runs of 1, 2, 4, ... tensors from each on: the most that forward takes after one of them is there.
  std::vector<std::vector<double>> make_most_after(const Line& line) const {
    std::vector<std::vector<double>> most(1);
    for (const int32_t tensor : line.tensors) most[0].push_back(forward_.after_us[static_cast<size_t>(tensor)]);
    for (size_t length = 1; 2 * length <= line.tensors.size(); length *= 2) {
      std::vector<double> twice;
      for (size_t t = 0; t + 2 * length <= line.tensors.size(); ++t) {
        twice.push_back(std::max(most.back()[t], most.back()[t + length]));
      }
      most.push_back(std::move(twice));
    }
    return most;
  }
  double most_after(size_t line, size_t first, size_t last) const {
    size_t power = 0;
    while (size_t{2} << power <= last - first + 1) ++power;
    const std::vector<double>& most = most_after_[line][power];
    return std::max(most[first], most[last + 1 - (size_t{1} << power)]);
  }

  const CostModel& model_;
  const core::GradientTable& table_;
  const size_t first_small_;
  const std::vector<double> ready_us_;
  const ForwardPass forward_;
  std::vector<bool> can_be_late_;  // of each option
  std::vector<Line> lines_;
  std::vector<std::vector<std::vector<double>>> most_after_;  // of each line
};

// When a plan ends, and the order in which its messages leave.
class Replay {
 public:
  explicit Replay(const Job& job) : job_(job) {}

  int64_t work() const { return work_; }

  double end_us(const Messages& messages, std::vector<size_t>* order = nullptr,
                std::vector<double>* there_us = nullptr) {
    work_ += static_cast<int64_t>(messages.size()) + kFixedWork;
    arrivals_.clear();
    double delay_us = 0, host_us = 0;
    for (size_t m = 0; m < messages.size(); ++m) {
      const Message& message = messages[m];
      delay_us += message.work[kBackward];
      double now_us = job_.ready_us()[message.last_tensor] + delay_us;
      if (message.work[kHost] > 0) now_us = host_us = std::max(host_us, now_us) + message.work[kHost];
      arrivals_.push_back({std::max(now_us, message.not_before_us), m});
    }
    // Nearly in order already.
    for (size_t i = 1; i < arrivals_.size(); ++i) {
      for (size_t j = i; j > 0 && arrivals_[j].us < arrivals_[j - 1].us; --j) std::swap(arrivals_[j], arrivals_[j - 1]);
    }
    double end_us = job_.whole_us() + delay_us + (job_.ready_us().empty() ? 0 : job_.ready_us().back());
    double link_us = 0, unpack_us = 0;
    pending_.clear();
    const auto is_later = [&](size_t a, size_t b) {
      return messages[a].after_us != messages[b].after_us ? messages[a].after_us < messages[b].after_us : a < b;
    };
    for (size_t next = 0; next < arrivals_.size() || !pending_.empty();) {
      if (pending_.empty()) link_us = std::max(link_us, arrivals_[next].us);
      for (; next < arrivals_.size() && arrivals_[next].us <= link_us; ++next) {
        pending_.push_back(arrivals_[next].message);
        std::push_heap(pending_.begin(), pending_.end(), is_later);
      }
      std::pop_heap(pending_.begin(), pending_.end(), is_later);
      const size_t m = pending_.back();
      pending_.pop_back();
      const Message& message = messages[m];
      double now_us = link_us += message.work[kLink];
      if (message.work[kUnpack] > 0) now_us = unpack_us = std::max(unpack_us, now_us) + message.work[kUnpack];
      end_us = std::max(end_us, now_us + message.after_us);
      if (order != nullptr) order->push_back(m);
      if (there_us != nullptr) there_us->push_back(now_us);
    }
    return end_us;
  }

 private:
  struct Arrival {
    double us;
    size_t message;
  };
  const Job& job_;
  int64_t work_ = 0;
  std::vector<Arrival> arrivals_;
  std::vector<size_t> pending_;
};

void sort(Messages& messages) {
  std::ranges::sort(messages, [](const Message& a, const Message& b) {
    if (a.last_tensor != b.last_tensor) return a.last_tensor < b.last_tensor;
    return a.begin < b.begin;
  });
}

// Plans that fill the time until the next gradients.
class Filling {
 public:
  // Messages of `option` take a + b x; those with less than `least_us` of b x wait for more, where they can; behind
  // backward they are at most `most_us` of it long.
  Filling(const Job& job, int32_t option, double least_us, double most_us)
      : job_(job), option_(option), least_us_(least_us), most_us_(most_us) {
    const core::DType dtype = job.lines()[0].dtype;
    const auto link_us = [&](int64_t numel) {
      return job.model().work(static_cast<size_t>(option), numel, dtype)[kLink];
    };
    const int64_t most = std::max<int64_t>(job.table().numel(), 2);
    element_us_ = std::max((link_us(most) - link_us(1)) / static_cast<double>(most - 1), 1e-12);
    message_us_ = std::max(link_us(1) - element_us_, 0.0);
  }

  Messages run() {
    size_t next = 0;
    const size_t size = job_.ready_us().size();
    std::vector<std::pair<size_t, size_t>> places(size, {job_.lines().size(), 0});  // line, and position in it
    for (size_t l = 0; l < job_.lines().size(); ++l) {
      for (size_t p = 0; p < job_.lines()[l].tensors.size(); ++p) {
        places[static_cast<size_t>(job_.lines()[l].tensors[p])] = {l, p};
      }
    }
    double now_us = 0;
    for (;;) {
      for (; next < size && job_.ready_us()[next] <= now_us; ++next) {
        const auto [line, position] = places[next];
        if (line < job_.lines().size()) arrive(line, position, job_.after_us(next));
      }
      if (open_.empty()) {
        if (next == size) break;
        now_us = job_.ready_us()[next];
        continue;
      }
      const size_t chosen = most_urgent();
      const double whole_us = us(open_[chosen].end - open_[chosen].begin);
      double block_us = whole_us;
      if (next == size) {
        block_us = std::min(whole_us, most_us_);
      } else {
        const double gap_us = next_us(next) - now_us - message_us_;
        if (whole_us < least_us_ && whole_us <= gap_us) {
          now_us = job_.ready_us()[next];
          continue;
        }
        if (whole_us > gap_us) block_us = std::min(whole_us, std::max(gap_us, least_us_));
      }
      now_us += message_us_ + send(chosen, block_us);
    }
    sort(sent_);
    return std::move(sent_);
  }

 private:
  struct Open {
    size_t line;
    int64_t begin, end;
    double after_us;  // of its last tensor
  };

  double us(int64_t numel) const { return element_us_ * static_cast<double>(numel); }

  void arrive(size_t line, size_t position, double after_us) {
    const int64_t begin = job_.lines()[line].begins[position], end = job_.lines()[line].begins[position + 1];
    for (Open& open : open_) {
      if (open.line != line || open.end != begin) continue;
      open.end = end;
      open.after_us = after_us;
      return;
    }
    open_.push_back({line, begin, end, after_us});
  }

  size_t most_urgent() const {
    size_t chosen = 0;
    for (size_t o = 1; o < open_.size(); ++o) {
      if (open_[o].after_us > open_[chosen].after_us) chosen = o;
    }
    return chosen;
  }

  // When there will be enough for another message.
  double next_us(size_t next) const {
    int64_t numel = 0;
    for (; next + 1 < job_.ready_us().size(); ++next) {
      numel += job_.table().tensors[next].numel;
      if (us(numel) >= least_us_) break;
    }
    return job_.ready_us()[next];
  }

  // The end of it, which forward reads first. Returns its length.
  double send(size_t chosen, double block_us) {
    Open& open = open_[chosen];
    const auto wanted = static_cast<int64_t>(std::min(block_us / element_us_, 1e18));
    int64_t elements = std::clamp<int64_t>(wanted, 1, open.end - open.begin);
    if (block_us >= us(open.end - open.begin)) elements = open.end - open.begin;
    Message message{.line = open.line, .begin = open.end - elements, .end = open.end, .option = option_};
    if (!job_.admits(message.line, message.end, static_cast<size_t>(option_))) message.option = 0;
    job_.complete(message);
    sent_.push_back(message);
    open.end = message.begin;
    if (open.begin == open.end) {
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(chosen));
    } else {
      open.after_us =
          job_.after_us(static_cast<size_t>(job_.lines()[open.line].tensors[job_.lines()[open.line].at(open.end - 1)]));
    }
    return us(elements);
  }

  const Job& job_;
  const int32_t option_;
  const double least_us_, most_us_;
  double message_us_ = 0, element_us_ = 0;
  std::vector<Open> open_;
  Messages sent_;
};

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

  // The message behind it in its line.
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

  // By tensors, and by shares of both.
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

  // Two messages, of which either may get the option that takes it least, and the first may wait for backward.
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

// No plan ends earlier, if larger messages never take longer than their parts: what is ready from some moment on passes
// the channel in one message, and forward goes on after that.
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

// A few random changes: merged, cut, under another option, to leave before others or behind backward.
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

// Each tensor under the option that takes its message least.
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

// The options that plans are made of to begin with: those that take an eighth of the gradient least.
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
        add(Filling(job, static_cast<int32_t>(o), least_us, most_us).run());
      }
    }
  }
  // The most promising ones share half of the work, others have what these leave of it, and the rest goes to the best
  // one, changed at random.
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
