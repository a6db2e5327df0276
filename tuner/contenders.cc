// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/contenders.h"

#include <algorithm>

namespace gradtune::tuner {
namespace {

constexpr size_t kMostOfAKind = 3, kMostKinds = 5, kMostFormer = 2;

}  // namespace

Contenders::Kind Contenders::kind_of(const core::Strategy& strategy) {
  Kind kind;
  for (const core::Bucket& bucket : strategy.buckets) {
    for (const core::CompressorSpec& codec : bucket.option.codecs) kind.insert(core::to_string(codec));
  }
  return kind;
}

void Contenders::measured(const policies::Candidate& candidate, double step_ms) {
  std::vector<Measured>& best = kinds_[kind_of(candidate.strategy)];
  std::erase_if(best, [hash = core::hash(candidate.strategy)](const Measured& other) {
    return core::hash(other.candidate.strategy) == hash;
  });
  best.insert(std::ranges::upper_bound(best, step_ms, {}, &Measured::step_ms), {candidate, step_ms});
  if (best.size() > kMostOfAKind) best.pop_back();
}

void Contenders::retire(const policies::Candidate& committed) {
  std::erase_if(former_, [hash = core::hash(committed.strategy)](const policies::Candidate& other) {
    return core::hash(other.strategy) == hash;
  });
  former_.insert(former_.begin(), committed);
  if (former_.size() > kMostFormer) former_.pop_back();
}

void Contenders::apply(const Bans& bans) {
  for (auto& [kind, best] : kinds_) {
    for (Measured& each : best) each.candidate = bans.without_banned(std::move(each.candidate));
    std::erase_if(best, [&](const Measured& each) { return bans.has_strategy(core::hash(each.candidate.strategy)); });
  }
  std::erase_if(kinds_, [](const auto& kind) { return kind.second.empty(); });
}

void Contenders::add_former_as_leaders(const Bans& bans) {
  for (const policies::Candidate& former : former_) {
    if (auto candidate = bans.admitted(former)) leaders_.push_back(std::move(*candidate));
  }
}

std::vector<policies::Candidate> Contenders::known(const core::Strategy* committed, const Bans& bans) const {
  std::vector<policies::Candidate> known;
  for (const policies::Candidate& former : former_) {
    if (auto candidate = bans.admitted(former)) known.push_back(std::move(*candidate));
  }
  std::vector<const Measured*> best;
  for (const auto& [kind, measured] : kinds_) best.push_back(&measured.front());
  std::ranges::sort(best, {}, &Measured::step_ms);
  if (best.size() > kMostKinds) best.resize(kMostKinds);
  const auto own = committed != nullptr ? kinds_.find(kind_of(*committed)) : kinds_.end();
  for (size_t i = 1; own != kinds_.end() && i < own->second.size(); ++i) best.push_back(&own->second[i]);
  for (const Measured* each : best) known.push_back(each->candidate);
  return known;
}

}  // namespace gradtune::tuner
