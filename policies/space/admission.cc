// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/admission.h"

#include <algorithm>
#include <iterator>

#include "policies/space/decision_tree.h"

namespace gradtune::policies {
namespace {

using core::Option;
using core::Place;
using core::Step;
using Kind = Step::Kind;

template <typename Predicate>
bool every_codec(const Option& option, const TreeJob& job, Predicate predicate) {
  return std::all_of(option.codecs.begin(), option.codecs.end(), [&](const core::CompressorSpec& codec) {
    const core::CompressorTraits* traits = core::traits_of(codec, job.traits);
    return traits != nullptr && predicate(*traits);
  });
}

bool fits_topology(const Option& option, const TreeJob& job) { return core::fits(option, job.ranks); }

bool fits_places(const Option& option, const TreeJob& job) { return job.host_threads > 0 || !core::uses_host(option); }

// A collective adds up only summable payloads, and of no more ranks than they allow. Compressors of several rounds
// have programs of their own.
bool fits_compressor(const Option& option, const TreeJob& job) {
  const int last_round = option.steps.back().round;
  if (!every_codec(option, job,
                   [&](const core::CompressorTraits& traits) { return traits.rounds == last_round + 1; })) {
    return false;
  }
  for (size_t i = 1; i < option.steps.size(); ++i) {
    const Step& before = option.steps[i - 1];
    if (!core::traits_of(option.steps[i].kind).adds_up || before.kind != Kind::encode) continue;
    const core::CompressorTraits* traits = core::traits_of(option.codecs[before.codec], job.traits);
    if (traits == nullptr || !traits->summable) return false;
    if (job.ranks.size > core::most_ranks(*traits, option.codecs[before.codec])) return false;
  }
  return true;
}

bool fits_fidelity(const Option& option, const TreeJob& job) {
  return every_codec(option, job,
                     [&](const core::CompressorTraits& traits) { return traits.fidelity <= job.fidelity; });
}

bool fits_allow_list(const Option& option, const TreeJob& job) {
  return std::all_of(option.codecs.begin(), option.codecs.end(), [&](const core::CompressorSpec& codec) {
    return std::find(job.codecs.begin(), job.codecs.end(), codec) != job.codecs.end();
  });
}

// As soon as one bucket has residuals, they are kept for all elements: those of this step and of the previous one. A
// 16-bit gradient that is not summed in its own dtype is copied to fp32 first.
bool fits_memory(const Option& option, const TreeJob& job) {
  constexpr int64_t kResidualBytes = 8, kStagedBytes = 4;
  if (!fits_topology(option, job)) return true;  // a group that does not exist has no size
  const std::vector<OpSize> sizes = op_sizes(option, job.numel, job.ranks, job.traits);
  const bool feeds_back =
      !every_codec(option, job, [](const core::CompressorTraits& traits) { return !traits.error_feedback; });
  const int64_t residual_bytes = feeds_back ? kResidualBytes * job.numel : 0;
  const int64_t staged_bytes = is_staged(option, core::DType::bf16) ? kStagedBytes * job.numel_16bit : 0;
  return residual_bytes + staged_bytes + payload_bytes(option.steps, sizes, job.ranks) <= job.memory_bytes;
}

// Payloads stay in one form inside a node: there is no collective there between an encode and its decode, and all of
// them run at one place.
bool fits_inside(const Option& option, const TreeJob& job) {
  if (!job.plain_inside || !core::uses_levels(option)) return true;
  const Step* first = nullptr;
  bool encoded = false;
  for (const Step& step : option.steps) {
    if (core::is_collective(step.kind)) {
      if (encoded && step.level == core::Level::intra) return false;
      continue;
    }
    if (first == nullptr) first = &step;
    if (step.place != first->place) return false;
    encoded = step.kind == Kind::encode;
  }
  return true;
}

constexpr AdmissionRule kRules[] = {
    {"topology", "levels where nodes are known, alike, several, and of several ranks; dimensions that ranks have",
     fits_topology},
    {"places", "work on the host where it has threads for that", fits_places},
    {"compressor", "a collective adds up payloads that can be added, in all rounds of a compressor", fits_compressor},
    {"fidelity", "compressors that the job's fidelity allows", fits_fidelity},
    {"allow-list", "compressors that are named", fits_allow_list},
    {"inside",
     "of programs with levels, where the job asks for it, those that encode for the network alone, at one place",
     fits_inside},
    {"memory", "payloads of the whole gradient within the job's memory budget", fits_memory},
};

}  // namespace

std::span<const AdmissionRule> admission_rules() { return kRules; }

bool admits(const Option& option, const TreeJob& job, const std::set<std::string_view>& off) {
  return std::all_of(std::begin(kRules), std::end(kRules),
                     [&](const AdmissionRule& rule) { return off.contains(rule.name) || rule.admits(option, job); });
}

std::vector<Option> tree_options(const TreeJob& job, const std::set<std::string_view>& off) {
  constexpr Place kPlaces[] = {Place::device, Place::host};
  // Programs that a rule would leave out as a whole are not generated.
  const bool on_host = job.host_threads > 0 || off.contains("places");
  const bool levels = job.ranks.has_levels() || off.contains("topology");
  const std::span<const Place> places(kPlaces, on_host ? 2 : 1);
  std::vector<std::vector<Steps>> families{flat_programs(places), flat_summing_programs(places)};
  if (levels) {
    families.push_back(hierarchical_programs(places));
    families.push_back(hierarchical_summing_programs(places));
    if (job.plain_inside && !off.contains("inside")) {
      // This must precede the combination of thousands of programs with every pair of compressors.
      for (std::vector<Steps>& programs : std::span(families).subspan(2)) {
        std::erase_if(programs, [&](const Steps& steps) { return !fits_inside({.codecs = {}, .steps = steps}, job); });
      }
    }
  }
  std::vector<Option> options;
  const auto add = [&](Option option) {
    if (admits(option, job, off)) options.push_back(std::move(option));
  };
  // Compressors that take rows are for sparse tensors (sparse_tensors.h).
  std::vector<core::CompressorSpec> codecs;
  std::ranges::copy_if(job.codecs, std::back_inserter(codecs), [&](const core::CompressorSpec& codec) {
    const core::CompressorTraits* traits = core::traits_of(codec, job.traits);
    return traits == nullptr || !traits->takes_rows;
  });
  for (const core::CompressorSpec& codec : codecs) {
    const core::CompressorTraits* traits = core::traits_of(codec, job.traits);
    if (traits == nullptr || traits->rounds == 1) continue;
    for (const Place place : places) add(core::encoded_all_reduce(codec, place, traits->rounds));
  }
  for (const std::vector<Steps>& programs : families) {
    for (const Steps& steps : programs) {
      const bool encodes =
          std::any_of(steps.begin(), steps.end(), [](const Step& s) { return s.kind == Kind::encode; });
      if (!encodes) {
        add({.codecs = {}, .steps = steps});
        continue;
      }
      for (const core::CompressorSpec& between : codecs) {
        add(with_codecs(steps, between, between));
        for (const core::CompressorSpec& inside : codecs) {
          Option mixed = with_codecs(steps, inside, between);
          if (mixed.codecs.size() > 1) add(std::move(mixed));
        }
      }
    }
  }
  return options;
}

std::vector<Option> admitted_options(const Knowledge& knowledge) {
  int64_t numel_16bit = 0;
  for (const core::TensorInfo& tensor : knowledge.table.tensors) {
    if (core::bytes_per_element(tensor.dtype) == 2) numel_16bit += tensor.numel;
  }
  return tree_options({.ranks = knowledge.ranks,
                       .host_threads = knowledge.host_threads,
                       .fidelity = knowledge.fidelity,
                       .codecs = knowledge.codecs,
                       .traits = knowledge.traits,
                       .numel = knowledge.table.numel(),
                       .numel_16bit = numel_16bit,
                       .memory_bytes = knowledge.memory_bytes,
                       .plain_inside = true});
}

}  // namespace gradtune::policies
