// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The joint search over partitions and options under a cost model: dynamic programming over prefixes of the
// gradient. A label is the state of the lanes after some partition of the prefix with some options. A label that is
// no better than another in any lane is dropped, and so is one whose lower bound is no better than a known plan.
// Only the most promising of the other labels of a prefix are kept. The least lower bound of the rest bounds the
// error of the answer. The number kept doubles until the bound is small enough or the limit of work is reached.
//
// Messages consist of whole, neighbouring atoms of one dtype, and leave in the order of readiness; the optimum and
// the bound hold for such plans. Another order may end earlier: if two messages are ready at once, the one that
// takes longer to unpack should leave first.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "policies/cost/cost_model.h"

namespace gradtune::policies {

// A piece of the gradient that is not cut any further.
struct Atom {
  int64_t numel = 0;
  double ready_us = 0;    // at least that of the previous atom
  bool is_small = false;  // must not get an option that loses
  core::DType dtype = core::DType::f32;
};

struct Message {
  int32_t first = 0, last = 0;  // atoms, inclusive
  int32_t option = 0;           // of the cost model

  bool operator==(const Message&) const = default;
};

struct Plan {
  std::vector<Message> messages;
  double end_us = 0;  // from the first ready gradient to the end of communication and backward

  bool operator==(const Plan&) const = default;
};

struct SearchOptions {
  bool merges = true;           // false: every atom is a separate message
  double tolerance = 0.01;      // of the answer: a smaller error bound ends the search; 0: exact
  int64_t most_work = 250'000;  // approximate number of labels made; the last round may exceed it
  int most_plans = 1;           // different ones; the first is the best
  double known_us = std::numeric_limits<double>::infinity();  // the end of a known plan: only better plans count
};

struct SearchResult {
  std::vector<Plan> plans;  // best first; empty if none is better than the known plan
  double least_us = 0;      // no plan in the order of readiness ends earlier
};

SearchResult search_labels(const CostModel& model, std::span<const Atom> atoms, const SearchOptions& options = {});

double replay_us(const CostModel& model, std::span<const Atom> atoms, std::span<const Message> messages);

}  // namespace gradtune::policies
