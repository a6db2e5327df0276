// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What planners know of time: how long each lane of a step is busy with one message (a bucket) under each option, and
// how lanes fill when messages follow one another. Leaves open where the figures come from: a model has them published,
// measured or made up.
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

// What one message goes through, in this order. Each lane serves messages first in, first out.
enum Lane : uint8_t {
  kBackward,  // work on the thread or stream of backward: delays this message and all gradients after it
  kHost,      // workers on the host, before the link
  kLink,      // collectives
  kUnpack,    // what follows the last collective
};
constexpr size_t kLanes = 4;

// Microseconds that a message keeps each lane busy; 0 where it does not use the lane.
using Work = std::array<double, kLanes>;

// The state of a step: for kBackward the delay so far, for the others when they are free, in us since the first
// gradient was ready. Less is never worse, in any lane, for anything that follows; and a state that is later by at most
// x in every lane ends at most x later: planners that drop states rely on both.
struct Lanes {
  std::array<double, kLanes> us{};

  // One more message, whose last gradient would be ready at `ready_us` without delays.
  void send(const Work& work, double ready_us) {
    us[kBackward] += work[kBackward];
    double now = ready_us + us[kBackward];
    for (const Lane lane : {kHost, kLink, kUnpack}) {
      if (work[lane] > 0) now = us[lane] = std::max(us[lane], now) + work[lane];
    }
  }

  // When all is done, backward included.
  double end_us(double last_ready_us) const {
    return std::max({last_ready_us + us[kBackward], us[kHost], us[kLink], us[kUnpack]});
  }
};

class CostModel {
 public:
  virtual ~CostModel() = default;

  // Option 0 sends the gradient as it is.
  virtual std::span<const core::Option> options() const = 0;

  // Of a message of so many elements of one dtype. Never less, in any lane, for more elements: the lower bounds of
  // planners rely on it.
  virtual Work work(size_t option, int64_t numel, core::DType dtype = core::DType::f32) const = 0;

  // The option with its encodes and decodes on the host, where it has one.
  virtual std::optional<size_t> on_host(size_t option) const = 0;

  // Whether the option changes gradients beyond rounding them, so that small tensors are not for it.
  virtual bool loses(size_t option) const = 0;
};

// The number of an option of the model, if it has that one.
std::optional<size_t> number_of(const core::Option& option, const CostModel& model);

// Whether a user may have that option without gradtune: the sum itself, or with a codec that does not lose, as DDP's
// communication hooks have it. `loses`: beyond rounding.
bool is_baseline(const core::Option& option, bool loses);

// Ready times as a step has them: medians over steps need not be monotone, though the events were.
std::vector<double> ready_times_us(const core::GradientTable& table);

// From the first ready gradient to the end of the step's communication. The options are the model's, each bucket one
// message, sent in the order of the buckets.
double replay_us(const CostModel& model, const core::GradientTable& table, const core::Strategy& strategy);

}  // namespace gradtune::policies
