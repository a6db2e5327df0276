// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/schemes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "policies/space/sparse_tensors.h"

namespace gradtune::policies {
namespace {

using core::Place;

const core::CompressorTraits& traits_of(const core::CompressorSpec& codec, const Knowledge& knowledge) {
  const core::CompressorTraits* traits = core::traits_of(codec, knowledge.traits);
  core::check(traits != nullptr, "an admitted compressor has no traits");
  return *traits;
}

// The bytes of all rounds of the first codec, at its usual use.
int64_t sent_bytes(const core::Bucket& bucket, const Knowledge& knowledge) {
  const core::CompressorSpec& codec = bucket.option.codecs[0];
  const std::vector<core::Matrix> matrices = core::matrices_of(bucket, knowledge.table);
  return core::usual_bytes(traits_of(codec, knowledge), codec,
                           {core::numel(bucket), matrices, core::content_of(bucket, knowledge.table)});
}

// Bytes that a rank sends, over the payload's bytes: a ring for all_reduce, and every payload to every peer for
// gather.
double ring_factor(int world_size) { return 2.0 * (world_size - 1) / world_size; }
double gather_factor(int world_size) { return world_size - 1.0; }

// The partition without the tensors from position `end` on.
Partition up_to(size_t end, const Partition& partition) {
  Partition kept;
  for (std::vector<core::Slice> bucket : partition) {
    std::erase_if(bucket, [&](const core::Slice& slice) { return static_cast<size_t>(slice.tensor) >= end; });
    if (!bucket.empty()) kept.push_back(std::move(bucket));
  }
  return kept;
}

// The tensors from position `begin` on, in one bucket for each dtype.
Partition from(size_t begin, const core::GradientTable& table) {
  core::GradientTable rest = table;
  for (size_t t = 0; t < begin; ++t) rest.tensors[t].numel = 0;
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  return core::cut(rest, kAll, kAll, /*split=*/false);
}

// The option for tensors that must not lose.
core::Option lossless(core::DType dtype, const Knowledge& knowledge) {
  for (const core::CompressorSpec& codec : knowledge.codecs) {
    const core::CompressorTraits& traits = traits_of(codec, knowledge);
    if (dtype == core::DType::f32 && traits.summable && traits.fidelity == core::Fidelity::half) {
      return core::encoded_all_reduce(codec, Place::device);
    }
  }
  return core::plain_all_reduce();
}

}  // namespace

std::vector<Scheme> admitted_schemes(const Knowledge& knowledge) {
  std::vector<Scheme> forms;
  core::Bucket whole;
  for (size_t t = 0; t < knowledge.table.tensors.size(); ++t) {
    whole.slices.push_back({static_cast<int32_t>(t), 0, knowledge.table.tensors[t].numel});
  }
  const double gradient_bytes = static_cast<double>(std::max<int64_t>(knowledge.table.bytes(), 1));
  const double ring = ring_factor(knowledge.ranks.size), gather = gather_factor(knowledge.ranks.size);
  for (size_t c = 0; c < knowledge.codecs.size(); ++c) {
    const core::CompressorSpec& codec = knowledge.codecs[c];
    const core::CompressorTraits& traits = traits_of(codec, knowledge);
    if (traits.takes_rows) continue;  // for sparse tensors (sparse_tensors.h)
    const bool is_lossy = traits.fidelity == core::Fidelity::lossy;
    const size_t end = is_lossy ? knowledge.table.first_small() : knowledge.table.tensors.size();
    const bool is_none = traits.fidelity == core::Fidelity::exact && traits.summable;
    whole.option.codecs = {codec};
    const double payload = static_cast<double>(sent_bytes(whole, knowledge)) / gradient_bytes;
    const auto add = [&](core::Option option, std::string_view scheme, Place place, double sent) {
      std::string label = option.codecs.empty() ? "" : core::to_string(codec) + " ";
      label += scheme;
      if (place == Place::host) label += " host";
      forms.push_back({.option = std::move(option),
                       .label = std::move(label),
                       .fidelity = traits.fidelity,
                       .codec = c,
                       .place = place,
                       .summable = traits.summable,
                       .sent = sent,
                       .end = end});
    };
    if (is_none) add(core::plain_all_reduce(), "all_reduce", Place::device, ring);
    for (Place place : {Place::device, Place::host}) {
      if (place == Place::host && knowledge.host_threads <= 0) continue;
      if (traits.rounds == 1) {
        add(core::gather_payloads(codec, place), "gather", place, gather * payload);
        add(core::two_step(codec, place), "two_step", place, ring * payload);
      }
      if (traits.summable && !is_none && knowledge.ranks.size <= core::most_ranks(traits, codec)) {
        add(core::encoded_all_reduce(codec, place, traits.rounds), "all_reduce", place, ring * payload);
      }
    }
  }
  return forms;
}

Candidate apply(const Scheme& form, const Partition& partition, const Knowledge& knowledge) {
  const Partition large = up_to(form.end, partition), small = from(form.end, knowledge.table);
  Partition all = large;
  all.insert(all.end(), small.begin(), small.end());
  Candidate candidate{core::uniform(all, form.option, /*in_flight=*/1),
                      fmt::format("{}, {} bucket{}{}", form.label, large.size(), large.size() == 1 ? "" : "s",
                                  small.empty() ? "" : " + small")};
  core::Strategy& strategy = candidate.strategy;
  for (size_t b = large.size(); b < all.size(); ++b) {
    const auto first = static_cast<size_t>(all[b][0].tensor);
    strategy.buckets[b].option = lossless(knowledge.table.tensors[first].dtype, knowledge);
  }
  for (core::Bucket& bucket : strategy.buckets) {
    const core::DType dtype = knowledge.table.tensors[static_cast<size_t>(bucket.slices[0].tensor)].dtype;
    if (!core::takes(bucket.option, dtype)) bucket.option = core::plain_all_reduce();
    if (bucket.option.codecs.empty()) continue;
    if (dtype == core::DType::f32 && !traits_of(bucket.option.codecs[0], knowledge).needs_matrices) continue;
    if (sent_bytes(bucket, knowledge) >= core::numel(bucket) * core::bytes_per_element(dtype)) {
      bucket.option = core::plain_all_reduce();
    }
  }
  core::set_default_flow(strategy);
  const std::vector<core::Option> gathered(knowledge.table.tensors.size(),
                                           core::gather_payloads({"rows"}, core::Place::device));
  strategy = with_sparse_tensors(std::move(strategy), knowledge.table, gathered);
  return candidate;
}

bool admitted(const core::Strategy& strategy, const Knowledge& knowledge) {
  if (!core::validate(strategy, knowledge.table)) return false;
  for (const core::Bucket& bucket : strategy.buckets) {
    if (!core::takes(bucket.option, core::dtype_of(bucket, knowledge.table))) return false;
    for (const core::CompressorSpec& codec : bucket.option.codecs) {
      if (std::find(knowledge.codecs.begin(), knowledge.codecs.end(), codec) == knowledge.codecs.end()) return false;
    }
  }
  return true;
}

}  // namespace gradtune::policies
