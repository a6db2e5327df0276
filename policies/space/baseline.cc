// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/baseline.h"

#include <algorithm>
#include <utility>

#include "policies/space/sparse_tensors.h"

namespace gradtune::policies {
namespace {

// PyTorch DDP's defaults, and the two collectives that its Gloo backend runs at once.
constexpr int64_t kFirstBucketBytes = 1 << 20;
constexpr int64_t kBucketBytes = 25 << 20;
constexpr int kInFlight = 2;

}  // namespace

std::vector<Candidate> baselines(const core::GradientTable& table, core::Fidelity fidelity) {
  const auto buckets = core::cut(table, kFirstBucketBytes, kBucketBytes, /*split=*/false);
  std::vector<Candidate> candidates;
  // Sparse gradients are gathered, as in DDP's Gloo backend.
  const std::vector<core::Option> gathered(table.tensors.size(), core::gather_payloads({"rows"}, core::Place::device));
  const auto candidate = [&](core::Strategy strategy, const char* label) {
    const int in_flight = strategy.in_flight;
    strategy = with_sparse_tensors(std::move(strategy), table, gathered);
    strategy.in_flight = in_flight;
    return Candidate{std::move(strategy), label};
  };
  candidates.push_back(candidate(core::uniform(buckets, core::plain_all_reduce(), kInFlight), "all_reduce baseline"));

  const auto is_fp32 = [&](const core::Bucket& bucket) {
    return table.tensors[static_cast<size_t>(bucket.slices[0].tensor)].dtype == core::DType::f32;
  };
  core::Strategy half = candidates[0].strategy;
  if (fidelity == core::Fidelity::exact || std::none_of(half.buckets.begin(), half.buckets.end(), is_fp32))
    return candidates;
  for (core::Bucket& bucket : half.buckets) {
    if (is_fp32(bucket) && bucket.option.codecs.empty())
      bucket.option = core::encoded_all_reduce({"bf16"}, core::Place::device);
  }
  half.order = core::staggered_order(half.buckets);
  candidates.push_back({std::move(half), "bf16 all_reduce baseline"});
  return candidates;
}

core::Strategy sent_as_baseline(core::Strategy strategy, int32_t bucket, const core::Strategy& baseline) {
  core::Bucket& sent = strategy.buckets[static_cast<size_t>(bucket)];
  const core::Option half = core::encoded_all_reduce({"bf16"}, core::Place::device);
  const bool is_half = std::ranges::any_of(baseline.buckets, [&](const core::Bucket& of_baseline) {
    return of_baseline.option == half && std::ranges::any_of(of_baseline.slices, [&](const core::Slice& slice) {
             return slice.tensor == sent.slices[0].tensor;
           });
  });
  sent.option = is_half ? half : core::plain_all_reduce();
  bool is_first = true;
  std::erase_if(strategy.order, [&](core::Issue& issue) {
    if (issue.bucket != bucket) return false;
    issue.step = is_half ? 1 : 0;
    return !std::exchange(is_first, false);
  });
  return strategy;
}

core::Strategy with_taken_options(core::Strategy strategy, const core::GradientTable& table) {
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const core::Bucket& bucket = strategy.buckets[b];
    if (core::takes(bucket.option, core::dtype_of(bucket, table))) continue;
    strategy = sent_as_baseline(std::move(strategy), static_cast<int32_t>(b));
  }
  return strategy;
}

}  // namespace gradtune::policies
