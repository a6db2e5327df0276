// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/forms.h"

#include <fmt/format.h>

#include <algorithm>

namespace gradtune::policies {
namespace {

using core::Place;

const core::CompressorTraits& traits_of(const core::CompressorSpec& codec,
                                        const Knowledge& knowledge) {
  const auto row =
      std::find_if(knowledge.traits.begin(), knowledge.traits.end(),
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

}  // namespace

std::vector<Form> admitted_forms(const Knowledge& knowledge) {
  std::vector<Form> forms;
  const int64_t numel = std::max<int64_t>(knowledge.table.numel(), 1);
  const double gradient_bytes = static_cast<double>(std::max<int64_t>(knowledge.table.bytes(), 1));
  const double ring = ring_factor(knowledge.world_size),
               gather = gather_factor(knowledge.world_size);
  for (size_t c = 0; c < knowledge.codecs.size(); ++c) {
    const core::CompressorSpec& codec = knowledge.codecs[c];
    const core::CompressorTraits& traits = traits_of(codec, knowledge);
    const bool is_none = traits.fidelity == core::Fidelity::exact && traits.summable;
    const double payload = static_cast<double>(traits.payload_bytes(codec, numel)) / gradient_bytes;
    const auto add = [&](core::Option option, std::string_view scheme, Place place, double sent) {
      std::string label = option.codecs.empty() ? "" : core::to_string(codec) + " ";
      label += scheme;
      if (place == Place::host) label += " host";
      forms.push_back(
          {std::move(option), std::move(label), traits.fidelity, c, place, traits.summable, sent});
    };
    if (is_none) add(core::plain_all_reduce(), "all_reduce", Place::device, ring);
    for (Place place : {Place::device, Place::host}) {
      if (place == Place::host && knowledge.host_threads <= 0) continue;
      add(core::gather_payloads(codec, place), "gather", place, gather * payload);
      add(core::two_step(codec, place), "two_step", place, ring * payload);
      if (traits.summable && !is_none)
        add(core::encoded_all_reduce(codec, place), "all_reduce", place, ring * payload);
    }
  }
  return forms;
}

Candidate apply(const Form& form, const Partition& partition, const Knowledge& knowledge) {
  const auto collectives =
      std::count_if(form.option.steps.begin(), form.option.steps.end(),
                    [](const core::Step& step) { return core::is_collective(step.kind); });
  Candidate candidate{core::uniform(partition, form.option, static_cast<int>(2 * collectives)),
                      fmt::format("{}, {} bucket{}", form.label, partition.size(),
                                  partition.size() == 1 ? "" : "s")};
  core::Strategy& strategy = candidate.strategy;
  for (core::Bucket& bucket : strategy.buckets) {
    const core::DType dtype =
        knowledge.table.tensors[static_cast<size_t>(bucket.slices[0].tensor)].dtype;
    if (dtype == core::DType::f32 || form.option.codecs.empty()) continue;
    const int64_t n = core::numel(bucket);
    if (payload_bytes(form.option.codecs[0], knowledge, n) >= n * core::bytes_per_element(dtype)) {
      bucket.option = core::plain_all_reduce();
    }
  }
  strategy.order = core::staggered_order(strategy.buckets);
  return candidate;
}

bool admitted(const core::Strategy& strategy, const Knowledge& knowledge) {
  for (const core::Bucket& bucket : strategy.buckets) {
    for (const core::CompressorSpec& codec : bucket.option.codecs) {
      if (std::find(knowledge.codecs.begin(), knowledge.codecs.end(), codec) ==
          knowledge.codecs.end())
        return false;
    }
  }
  return core::validate(strategy, knowledge.table).ok();
}

}  // namespace gradtune::policies
