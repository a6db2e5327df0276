// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/decision_tree.h"

#include <algorithm>
#include <iterator>

namespace gradtune::policies {
namespace {

using core::Level;
using core::Place;
using core::Step;
using Kind = Step::Kind;
using Programs = std::vector<Steps>;  // alternatives

// --- alternatives: this one or that one, and this one before that one ------------------------------------------------

Programs operator|(Programs a, const Programs& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Programs operator*(const Programs& heads, const Programs& tails) {
  Programs all;
  all.reserve(heads.size() * tails.size());
  for (const Steps& head : heads) {
    for (const Steps& tail : tails) {
      all.push_back(head);
      all.back().insert(all.back().end(), tail.begin(), tail.end());
    }
  }
  return all;
}

Programs one(Kind kind, Level level) { return {{Step{.kind = kind, .level = level}}}; }

Programs at_each(std::span<const Place> places, Kind kind) {
  Programs all;
  for (const Place place : places) all.push_back({Step{.kind = kind, .place = place}});
  return all;
}

// --- the grammar -----------------------------------------------------------------------------------------------------

enum class Pair { divisible, indivisible };
constexpr Pair kPairs[] = {Pair::divisible, Pair::indivisible};

class Grammar {
 public:
  explicit Grammar(std::span<const Place> places)
      : encode_(at_each(places, Kind::encode)), decode_(at_each(places, Kind::decode)) {}

  Programs flat() const {
    Programs all = one(Kind::all_reduce, Level::flat) | encode_ * one(Kind::all_gather, Level::flat) * decode_;
    for (const Pair pair : kPairs) {
      all = all | first_plain(Level::flat, pair) * second_plain(Level::flat, pair) |
            encode_ * first_encoded(Level::flat, pair) * second_encoded(Level::flat, pair);
    }
    return all;
  }

  Programs hierarchical() const {
    Programs all;
    for (const Pair intra : kPairs) {
      const Programs plain = inter_plain(intra) | encode_ * inter_encoded(intra);
      all = all | first_plain(Level::intra, intra) * plain |
            encode_ * first_encoded(Level::intra, intra) * (inter_encoded(intra) | decode_ * plain);
    }
    return all;
  }

  Programs flat_summing() const { return encode_ * one(Kind::all_reduce, Level::flat) * decode_; }

  Programs hierarchical_summing() const {
    Programs all;
    for (const Pair intra : kPairs) {
      const Programs sum = encode_ * one(Kind::all_reduce, Level::inter) * second_encoded(Level::intra, intra);
      all = all | first_plain(Level::intra, intra) * sum | encode_ * first_encoded(Level::intra, intra) * decode_ * sum;
    }
    return all;
  }

 private:
  // Comm1 and Comm1_c, and Comm2 and Comm2_c: each pair uses the same collectives.
  static Programs first_plain(Level level, Pair pair) {
    return one(pair == Pair::divisible ? Kind::reduce_scatter : Kind::reduce, level);
  }
  static Programs first_encoded(Level level, Pair pair) {
    return one(pair == Pair::divisible ? Kind::all_to_all : Kind::gather, level);
  }
  static Programs second(Level level, Pair pair) {
    return one(pair == Pair::divisible ? Kind::all_gather : Kind::broadcast, level);
  }

  // T1 and T2
  Programs second_plain(Level level, Pair pair) const {
    return second(level, pair) | encode_ * second(level, pair) * decode_;
  }
  Programs second_encoded(Level level, Pair pair) const {
    return second(level, pair) * decode_ | decode_ * second_plain(level, pair);
  }

  // T3, T4 and T5; the choice inside the node is made already.
  Programs inter_plain(Pair intra) const {
    Programs all = one(Kind::all_reduce, Level::inter) * second_plain(Level::intra, intra);
    for (const Pair inter : kPairs) all = all | first_plain(Level::inter, inter) * second_inter(inter, intra);
    return all;
  }
  Programs inter_encoded(Pair intra) const {
    Programs all = one(Kind::all_gather, Level::inter) * second_encoded(Level::intra, intra);
    for (const Pair inter : kPairs) {
      all = all |
            first_encoded(Level::inter, inter) * (second(Level::inter, inter) * second_encoded(Level::intra, intra) |
                                                  decode_ * second_inter(inter, intra));
    }
    return all;
  }
  Programs second_inter(Pair inter, Pair intra) const {
    return second(Level::inter, inter) * second_plain(Level::intra, intra) |
           encode_ * second(Level::inter, inter) * second_encoded(Level::intra, intra);
  }

  const Programs encode_, decode_;  // Comp, Decomp
};

}  // namespace

std::vector<Steps> flat_programs(std::span<const Place> places) { return Grammar(places).flat(); }
std::vector<Steps> hierarchical_programs(std::span<const Place> places) { return Grammar(places).hierarchical(); }
std::vector<Steps> flat_summing_programs(std::span<const Place> places) { return Grammar(places).flat_summing(); }
std::vector<Steps> hierarchical_summing_programs(std::span<const Place> places) {
  return Grammar(places).hierarchical_summing();
}

core::Option with_codecs(Steps steps, const core::CompressorSpec& inside, const core::CompressorSpec& between) {
  core::Option option{.codecs = {}, .steps = std::move(steps)};
  const auto number_of = [&](const core::CompressorSpec& codec) {
    const auto found = std::find(option.codecs.begin(), option.codecs.end(), codec);
    const auto number = static_cast<uint8_t>(found - option.codecs.begin());
    if (found == option.codecs.end()) option.codecs.push_back(codec);
    return number;
  };
  uint8_t codec = 0;
  for (auto step = option.steps.begin(); step != option.steps.end(); ++step) {
    if (step->kind == Kind::encode) {
      const auto decode = std::find_if(step, option.steps.end(), [](const Step& s) { return s.kind == Kind::decode; });
      const bool crosses = std::any_of(
          step, decode, [](const Step& s) { return core::is_collective(s.kind) && s.level != Level::intra; });
      codec = number_of(crosses ? between : inside);
    }
    if (!core::is_collective(step->kind)) step->codec = codec;
  }
  return option;
}

}  // namespace gradtune::policies
