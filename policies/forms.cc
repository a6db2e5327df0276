// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/forms.h"

#include <fmt/format.h>

#include <algorithm>

namespace gradtune::policies {
namespace {

using core::Place;

const core::CompressorTraits& traits_of(const core::CompressorSpec& codec, const Knowledge& knowledge) {
  const auto row = std::find_if(knowledge.traits.begin(), knowledge.traits.end(),
                                [&](const core::CompressorTraits& traits) { return traits.name == codec.name; });
  core::check(row != knowledge.traits.end(), "an admitted compressor has no traits");
  return *row;
}

int64_t payload_bytes(const core::CompressorSpec& codec, const Knowledge& knowledge, int64_t n) {
  return traits_of(codec, knowledge).payload_bytes(codec, n);
}

// Bytes that a rank sends, over the payload's: a ring for all_reduce, and every payload to every peer for gather.
double ring_factor(int world_size) { return 2.0 * (world_size - 1) / world_size; }
double gather_factor(int world_size) { return world_size - 1.0; }

// The partition, and the tensors that it leaves out: buckets for each dtype, behind it.
Partition completed(const Partition& partition, const core::GradientTable& table) {
  Partition all = partition;
  std::vector<bool> is_held(table.tensors.size(), false);
  for (const auto& bucket : partition) {
    for (const core::Slice& slice : bucket) is_held[static_cast<size_t>(slice.tensor)] = true;
  }
  for (core::DType dtype : {core::DType::f32, core::DType::bf16, core::DType::f16}) {
    std::vector<core::Slice> rest;
    for (size_t t = 0; t < is_held.size(); ++t) {
      const core::TensorInfo& tensor = table.tensors[t];
      if (is_held[t] || tensor.dtype != dtype || tensor.numel == 0) continue;
      rest.push_back({static_cast<int32_t>(t), 0, tensor.numel});
    }
    if (!rest.empty()) all.push_back(std::move(rest));
  }
  return all;
}

// For tensors that are not worth a loss.
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

core::GradientTable compressible(const Form& form, const core::GradientTable& table) {
  core::GradientTable part = table;
  if (form.fidelity == core::Fidelity::lossy) part.tensors.resize(table.first_small());
  return part;
}

std::vector<Form> admitted_forms(const Knowledge& knowledge) {
  std::vector<Form> forms;
  const int64_t numel = std::max<int64_t>(knowledge.table.numel(), 1);
  const double gradient_bytes = static_cast<double>(std::max<int64_t>(knowledge.table.bytes(), 1));
  const double ring = ring_factor(knowledge.world_size), gather = gather_factor(knowledge.world_size);
  for (size_t c = 0; c < knowledge.codecs.size(); ++c) {
    const core::CompressorSpec& codec = knowledge.codecs[c];
    const core::CompressorTraits& traits = traits_of(codec, knowledge);
    const bool is_none = traits.fidelity == core::Fidelity::exact && traits.summable;
    const double payload = static_cast<double>(traits.payload_bytes(codec, numel)) / gradient_bytes;
    const auto add = [&](core::Option option, std::string_view scheme, Place place, double sent) {
      std::string label = option.codecs.empty() ? "" : core::to_string(codec) + " ";
      label += scheme;
      if (place == Place::host) label += " host";
      forms.push_back({std::move(option), std::move(label), traits.fidelity, c, place, traits.summable, sent});
    };
    if (is_none) add(core::plain_all_reduce(), "all_reduce", Place::device, ring);
    for (Place place : {Place::device, Place::host}) {
      if (place == Place::host && knowledge.host_threads <= 0) continue;
      add(core::gather_payloads(codec, place), "gather", place, gather * payload);
      add(core::two_step(codec, place), "two_step", place, ring * payload);
      if (traits.summable && !is_none) add(core::encoded_all_reduce(codec, place), "all_reduce", place, ring * payload);
    }
  }
  return forms;
}

Candidate apply(const Form& form, const Partition& partition, const Knowledge& knowledge) {
  const auto collectives = std::count_if(form.option.steps.begin(), form.option.steps.end(),
                                         [](const core::Step& step) { return core::is_collective(step.kind); });
  const Partition all = completed(partition, knowledge.table);
  Candidate candidate{core::uniform(all, form.option, static_cast<int>(2 * collectives)),
                      fmt::format("{}, {} bucket{}{}", form.label, partition.size(), partition.size() == 1 ? "" : "s",
                                  all.size() > partition.size() ? " + small" : "")};
  core::Strategy& strategy = candidate.strategy;
  for (size_t b = partition.size(); b < all.size(); ++b) {
    const auto first = static_cast<size_t>(all[b][0].tensor);
    strategy.buckets[b].option = lossless(knowledge.table.tensors[first].dtype, knowledge);
  }
  for (core::Bucket& bucket : strategy.buckets) {
    const core::DType dtype = knowledge.table.tensors[static_cast<size_t>(bucket.slices[0].tensor)].dtype;
    if (dtype == core::DType::f32 || bucket.option.codecs.empty()) continue;
    const int64_t n = core::numel(bucket);
    if (payload_bytes(bucket.option.codecs[0], knowledge, n) >= n * core::bytes_per_element(dtype)) {
      bucket.option = core::plain_all_reduce();
    }
  }
  strategy.order = core::staggered_order(strategy.buckets);
  return candidate;
}

bool admitted(const core::Strategy& strategy, const Knowledge& knowledge) {
  for (const core::Bucket& bucket : strategy.buckets) {
    for (const core::CompressorSpec& codec : bucket.option.codecs) {
      if (std::find(knowledge.codecs.begin(), knowledge.codecs.end(), codec) == knowledge.codecs.end()) return false;
    }
  }
  return core::validate(strategy, knowledge.table).ok();
}

}  // namespace gradtune::policies
