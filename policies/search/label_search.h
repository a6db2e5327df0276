// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The joint search over partitions and options under a cost model: dynamic programming over prefixes of the gradient,
// where a label is a state of the lanes that some partition of the prefix, with some options, ends in. A label that is
// no better than another in any lane is dropped, so is one whose lower bound is no better than a plan that is known;
// beyond that only the most promising labels of a prefix are kept, and the least lower bound of those that were not
// bounds the error of the answer. The number kept doubles until the bound is small enough or the limit of work is
// reached.
//
// Messages are of whole atoms of one dtype, neighbours of each other, and leave in the order of readiness; so what is
// called the best, and bounded, is the best of these. Another order may end earlier: of two messages that are ready at
// once, the one that takes longer to unpack should leave first.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "policies/cost/cost_model.h"

namespace gradtune::policies {

// A piece of gradient that is not cut any further.
struct Atom {
  int64_t numel = 0;
  double ready_us = 0;    // not before the atom in front of it
  bool is_small = false;  // not for options that lose
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
  bool merges = true;           // false: every atom is a message of its own
  double tolerance = 0.01;      // of the answer: a smaller error bound ends the search; 0: exact
  int64_t most_work = 250'000;  // labels that are made, about; the last round may end beyond it
  int most_plans = 1;           // different ones, of which the first is the best
  double known_us = std::numeric_limits<double>::infinity();  // a plan is known that ends then: only better ones count
};

struct SearchResult {
  std::vector<Plan> plans;  // best first; empty where none is better than what is known
  double least_us = 0;      // no plan of this order ends earlier
};

SearchResult search_labels(const CostModel& model, std::span<const Atom> atoms, const SearchOptions& options = {});

double replay_us(const CostModel& model, std::span<const Atom> atoms, std::span<const Message> messages);

}  // namespace gradtune::policies
