// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The planners' view of time: the time for which one message (a bucket) keeps each lane of a step busy under each
// option, and the way in which consecutive messages fill the lanes. The implementations provide the figures:
// published, measured or synthetic ones.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/option.h"
#include "engine/core/strategy.h"

namespace gradtune::policies {

// The stages of one message, in this order. Each lane serves messages first in, first out.
enum Lane : uint8_t {
  kBackward,  // work on the thread or stream of backward: delays this message and all later gradients
  kHost,      // workers on the host, before the link
  kLink,      // collectives
  kUnpack,    // work after the last collective
};
constexpr size_t kLanes = 4;

// Microseconds for which a message keeps each lane busy; 0 if it does not use the lane.
using Work = std::array<double, kLanes>;

// The state of a step. kBackward holds the delay so far; the other lanes hold the time at which they are free, in us
// since the first gradient was ready. Planners that drop states rely on two properties. A smaller value, in any
// lane, is never worse for later messages. A state that is later by at most x in every lane ends at most x later.
struct Lanes {
  std::array<double, kLanes> us{};

  // Adds one message, whose last gradient would be ready at `ready_us` without delays.
  void send(const Work& work, double ready_us) {
    us[kBackward] += work[kBackward];
    double now = ready_us + us[kBackward];
    for (const Lane lane : {kHost, kLink, kUnpack}) {
      if (work[lane] > 0) now = us[lane] = std::max(us[lane], now) + work[lane];
    }
  }

  // The time at which all work is done, backward included.
  double end_us(double last_ready_us) const {
    return std::max({last_ready_us + us[kBackward], us[kHost], us[kLink], us[kUnpack]});
  }
};

class CostModel {
 public:
  virtual ~CostModel() = default;

  // Option 0 sends the gradient as it is.
  virtual std::span<const core::Option> options() const = 0;

  // The work for a message of `numel` elements of one dtype. It never decreases, in any lane, with more elements:
  // the lower bounds of planners rely on that.
  virtual Work work(size_t option, int64_t numel, core::DType dtype = core::DType::f32) const = 0;

  // The same option with its encodes and decodes on the host, if there is one.
  virtual std::optional<size_t> on_host(size_t option) const = 0;

  // True if the option changes gradients beyond rounding, so that small tensors must not use it.
  virtual bool loses(size_t option) const = 0;
};

// The number of an option in the model, if it has that option.
std::optional<size_t> number_of(const core::Option& option, const CostModel& model);

// True if a user can have that option without gradtune: a plain sum, or a sum with a codec that only rounds, as in
// DDP's communication hooks. `loses`: the option changes gradients beyond rounding.
bool is_baseline(const core::Option& option, bool loses);

// Ready times made monotone, as in any single step: their medians over steps need not be monotone.
std::vector<double> ready_times_us(const core::GradientTable& table);

// Time from the first ready gradient to the end of the step's communication. The options must be the model's. Each
// bucket is one message, sent in the order of the buckets.
double replay_us(const CostModel& model, const core::GradientTable& table, const core::Strategy& strategy);

}  // namespace gradtune::policies
