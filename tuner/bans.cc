// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/bans.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "policies/space/baseline.h"

namespace gradtune::tuner {
namespace {

// Names the buckets one by one, as long as the text stays readable.
std::string replaced_label(const std::string& label, int32_t bucket) {
  constexpr std::string_view kMark = ", as the baseline: bucket ", kMore = ", ...";
  constexpr size_t kMostBytes = 160;
  if (label.find(kMark) == std::string::npos) return fmt::format("{}{}{}", label, kMark, bucket);
  if (label.size() < kMostBytes) return fmt::format("{}, {}", label, bucket);
  return label.ends_with(kMore) ? label : fmt::format("{}{}", label, kMore);
}

}  // namespace

policies::Candidate sent_as_baseline(policies::Candidate candidate, int32_t bucket, const core::Strategy& baseline) {
  return {policies::sent_as_baseline(std::move(candidate.strategy), bucket, baseline),
          replaced_label(candidate.label, bucket)};
}

void Bans::ban_codecs(const std::vector<std::string>& codecs, const core::Bucket& bucket) {
  for (const std::string& codec : codecs) {
    for (const core::Slice& slice : bucket.slices) codecs_[codec].insert(slice.tensor);
  }
}

policies::Candidate Bans::without_banned(policies::Candidate candidate) const {
  const int32_t buckets = codecs_.empty() ? 0 : static_cast<int32_t>(candidate.strategy.buckets.size());
  for (int32_t b = 0; b < buckets; ++b) {
    const core::Bucket& bucket = candidate.strategy.buckets[static_cast<size_t>(b)];
    const bool is_banned = std::ranges::any_of(bucket.option.codecs, [&](const core::CompressorSpec& codec) {
      const auto tensors = codecs_.find(core::to_string(codec));
      return tensors != codecs_.end() && std::ranges::any_of(bucket.slices, [&](const core::Slice& slice) {
               return tensors->second.contains(slice.tensor);
             });
    });
    if (is_banned) candidate = sent_as_baseline(std::move(candidate), b, baseline_);
  }
  return candidate;
}

std::optional<policies::Candidate> Bans::admitted(const policies::Candidate& proposed) const {
  policies::Candidate candidate = without_banned(proposed);
  if (has_strategy(core::hash(candidate.strategy))) return {};
  return candidate;
}

}  // namespace gradtune::tuner
