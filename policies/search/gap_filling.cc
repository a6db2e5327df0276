// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/gap_filling.h"

#include <utility>

namespace gradtune::policies::overlap {
namespace {

class Filling {
 public:
  // Messages of `option` take a + b x. Messages with b x below `least_us` wait for more elements if they can. After
  // backward they have at most `most_us` of b x.
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

  // The time at which there is enough for another message.
  double next_us(size_t next) const {
    int64_t numel = 0;
    for (; next + 1 < job_.ready_us().size(); ++next) {
      numel += job_.table().tensors[next].numel;
      if (us(numel) >= least_us_) break;
    }
    return job_.ready_us()[next];
  }

  // Sends the end of the open line that forward reads first. Returns its length.
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

}  // namespace

Messages fill_gaps(const Job& job, const FillingOptions& options) {
  return Filling(job, options.option, options.least_us, options.most_us).run();
}

}  // namespace gradtune::policies::overlap
