// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Plans of the joint search for steps that go on into the next forward pass (overlap_search.h): their parts, and the
// end of a step under a plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "policies/cost/cost_model.h"
#include "policies/cost/forward_pass.h"

namespace gradtune::policies::overlap {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kFixedWork = 10;  // fixed work of a replay, in messages

// The gradients of one dtype, one after another.
struct Line {
  core::DType dtype;
  std::vector<int32_t> tensors;
  std::vector<int64_t> begins;  // of each tensor, and the end of the last one

  int64_t numel() const { return begins.back(); }
  // The tensor that holds that element.
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
  // Derived values.
  Work work{};
  size_t last_tensor = 0;
  double after_us = 0;  // forward and updates after its arrival
};
using Messages = std::vector<Message>;  // by their last tensors; those of a line are consecutive

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

  // The option with the least work for such a message, summed over lanes.
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
  // For ranges of 1, 2, 4, ... tensors from each tensor on: the longest forward time after the arrival of one of
  // them.
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

// Computes the end of a plan, and the order in which its messages leave.
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
    // They are nearly in order already.
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

// Restores the order of Messages.
inline void sort(Messages& messages) {
  std::ranges::sort(messages, [](const Message& a, const Message& b) {
    if (a.last_tensor != b.last_tensor) return a.last_tensor < b.last_tensor;
    return a.begin < b.begin;
  });
}

}  // namespace gradtune::policies::overlap
