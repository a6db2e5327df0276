// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/cost_fit.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "engine/core/median.h"
#include "policies/cost/link_fit.h"

namespace gradtune::policies {
namespace {

using core::Step;
using Kind = Step::Kind;

// Observed durations and sizes for every kind of rate.
struct Samples {
  struct Codec {
    std::vector<Point> encode, decode;
  };
  // The used shares of payloads that may be shorter than their buffers.
  std::vector<std::pair<core::CompressorSpec, std::vector<double>>> uses = {};
  std::vector<std::vector<TimedMessage>> messages = {};  // of each step
  std::vector<std::pair<std::pair<core::CompressorSpec, core::Place>, Codec>> codecs = {};
  std::vector<Point> scale = {}, to_host = {}, to_device = {};

  Codec& codec(const core::CompressorSpec& spec, core::Place place) {
    for (auto& [key, codec] : codecs) {
      if (key.first == spec && key.second == place) return codec;
    }
    codecs.push_back({{spec, place}, {}});
    return codecs.back().second;
  }

  void add_use(const core::CompressorSpec& spec, double use) {
    const auto found = std::ranges::find(uses, spec, &std::pair<core::CompressorSpec, std::vector<double>>::first);
    (found == uses.end() ? uses.emplace_back(spec, std::vector<double>()) : *found).second.push_back(use);
  }
  double use_of(const core::CompressorSpec& spec) const {
    const auto found = std::ranges::find(uses, spec, &std::pair<core::CompressorSpec, std::vector<double>>::first);
    return found == uses.end() ? 0 : core::median(found->second);
  }
};

Worker worker_of(const Step& step) {
  if (core::is_collective(step.kind)) return uses_network(step.level) ? Worker::network : Worker::link_intra;
  return step.place == core::Place::device ? Worker::device : Worker::host;
}

// The work clock of a step that ran. Backward ends when the first operation begins that waited for its last
// gradient. The device's other work before that interrupts backward.
WorkClock clock_of(const TimedRun& timed, const Cores& cores) {
  std::vector<AtWork> all;
  int32_t last_tensor = -1;
  double backward_end_us = 0;
  for (const TimedOp& each : timed.steps) {
    const core::Bucket& bucket = timed.strategy.buckets[static_cast<size_t>(each.bucket)];
    const int32_t tensor = std::ranges::max(bucket.slices, {}, &core::Slice::tensor).tensor;
    if (tensor > last_tensor) {
      last_tensor = tensor;
      backward_end_us = each.begin_us;
    } else if (tensor == last_tensor) {
      backward_end_us = std::min(backward_end_us, each.begin_us);
    }
    if (each.step < 0) {
      if (each.step == kScaleStep) all.push_back({Worker::device, each.begin_us, each.end_us});
      continue;
    }
    all.push_back({worker_of(bucket.option.steps[static_cast<size_t>(each.step)]), each.begin_us, each.end_us});
  }
  std::vector<AtWork> on_device;
  std::ranges::copy_if(all, std::back_inserter(on_device),
                       [](const AtWork& each) { return each.worker == Worker::device; });
  std::ranges::sort(on_device, {}, &AtWork::begin_us);
  double until_us = 0;
  for (const AtWork& each : on_device) {
    all.push_back({Worker::backward, until_us, std::min(each.begin_us, backward_end_us)});
    until_us = each.end_us;
  }
  all.push_back({Worker::backward, until_us, backward_end_us});
  return {cores, all};
}

// The bytes that the busiest link carried: the bytes that were sent if they are known, otherwise the usual number.
double carried_bytes(const TimedOp& op, const OpSize& size) {
  return op.bytes < 0 ? static_cast<double>(size.link_bytes) : size.sharing * static_cast<double>(op.bytes);
}

void take(const TimedRun& timed, const core::GradientTable& table, const core::Ranks& ranks, core::TraitsTable known,
          const Cores& cores, Samples& samples) {
  const bool on_device = !(cores.computing > 0);  // a device computes, so its work needs no core
  std::vector<std::vector<OpSize>> sizes;
  for (const core::Bucket& bucket : timed.strategy.buckets) {
    const std::vector<core::Matrix> matrices = core::matrices_of(bucket, table);
    sizes.push_back(op_sizes(bucket.option, {core::numel(bucket), matrices, core::content_of(bucket, table)}, ranks,
                             known, core::dtype_of(bucket, table)));
  }
  std::vector<TimedMessage>& messages = samples.messages.emplace_back();
  const WorkClock clock = clock_of(timed, cores);
  for (const TimedOp& each : timed.steps) {
    const core::Bucket& bucket = timed.strategy.buckets[static_cast<size_t>(each.bucket)];
    const double passed_us = each.end_us - each.begin_us;
    if (each.step == kToHostStep || each.step == kToDeviceStep) {
      std::vector<Point>& copies = each.step == kToHostStep ? samples.to_host : samples.to_device;
      if (each.bytes >= 0) copies.push_back({static_cast<double>(each.bytes), passed_us});
      continue;
    }
    const double begin_us = clock.at(each.begin_us), end_us = clock.at(each.end_us), us = end_us - begin_us;
    if (each.step < 0) {
      samples.scale.push_back({static_cast<double>(core::numel(bucket)), on_device ? passed_us : us});
      continue;
    }
    const Step& step = bucket.option.steps[static_cast<size_t>(each.step)];
    const OpSize& size = sizes[static_cast<size_t>(each.bucket)][static_cast<size_t>(each.step)];
    if (core::is_collective(step.kind)) {
      const bool needs_cores = !uses_network(step.level);
      messages.push_back({step.kind, step.level, carried_bytes(each, size), needs_cores ? begin_us : each.begin_us,
                          needs_cores ? end_us : each.end_us});
      if (size.codec < 0 || each.bytes < 0) continue;
      const core::CompressorSpec& spec = bucket.option.codecs[static_cast<size_t>(size.codec)];
      const int64_t most_bytes = core::link_bytes(step.kind, size.bytes, ranks.of(step.level));
      const core::CompressorTraits& traits = *core::traits_of(spec, known);
      // If the codec leaves out zeros, the share depends on the tensor, not on the codec.
      if (traits.used_bytes != nullptr && !traits.takes_rows && each.bytes > 0 && most_bytes > 0) {
        samples.add_use(spec, static_cast<double>(each.bytes) / static_cast<double>(most_bytes));
      }
      continue;
    }
    Samples::Codec& codec = samples.codec(bucket.option.codecs[step.codec], step.place);
    const double codec_us = on_device && step.place == core::Place::device ? passed_us : us;
    if (step.kind == Kind::encode) {
      codec.encode.push_back({static_cast<double>(size.elements), codec_us});
    } else {
      codec.decode.push_back({static_cast<double>(4 * size.elements + size.bytes), codec_us});
    }
  }
}

}  // namespace

FittedCost fit_cost(std::span<const TimedRun> timed, const core::GradientTable& table, const core::Ranks& ranks,
                    core::TraitsTable known, const CostTable& prior, const Machine& machine) {
  Samples samples;
  for (const TimedRun& each : timed) take(each, table, ranks, known, machine.cores, samples);
  FittedCost fitted{.table = {.ranks = ranks, .cores = machine.cores, .on_device = machine.on_device},
                    .collectives = {},
                    .codecs = {}};
  for (const FittedCollective& each : fit_links(samples.messages, ranks, prior)) {
    fitted.table.collectives.push_back(each.rate);
    fitted.collectives.push_back(each.quality);
  }
  for (const CodecRate& rate : prior.codecs) samples.codec(rate.codec, rate.place);
  for (const auto& [key, codec] : samples.codecs) {
    const CodecRate* expected = find_rate(prior, key.first, key.second);
    if (expected == nullptr && (codec.encode.empty() || codec.decode.empty())) continue;
    CodecRate rate = expected == nullptr ? CodecRate{.codec = key.first, .place = key.second} : *expected;
    RateQuality quality{.samples = 0, .error = 0};
    if (!codec.encode.empty()) {
      const Line line = fit_line(codec.encode, {.expected_fixed = rate.encode_us});
      std::tie(rate.encode_us, rate.encode_element_us) = std::pair(line.fixed, line.unit);
      quality = quality_of(line, codec.encode);
    }
    if (!codec.decode.empty()) {
      const Line line = fit_line(codec.decode, {.expected_fixed = rate.decode_us});
      std::tie(rate.decode_us, rate.decode_element_us, rate.decode_byte_us) =
          std::tuple(line.fixed, 4 * line.unit, line.unit);
      const RateQuality of_decode = quality_of(line, codec.decode);
      quality = {quality.samples + of_decode.samples, std::max(quality.error, of_decode.error)};
    }
    if (const double use = samples.use_of(key.first); use > 0) rate.use = std::min(use, 1.0);
    fitted.table.codecs.push_back(rate);
    fitted.codecs.push_back(codec.encode.empty() || codec.decode.empty() ? RateQuality() : quality);
  }
  const Line scale = fit_line(samples.scale, {.expected_fixed = prior.scale_us});
  fitted.table.scale_us = scale.fixed;
  fitted.table.scale_element_us = scale.unit;
  const auto fit_copies = [](std::vector<Point>& seen, const CopyRate& expected) {
    if (seen.empty()) return expected;
    const Line line = fit_line(std::move(seen), {.expected_fixed = expected.copy_us});
    return CopyRate{line.fixed, line.unit};
  };
  fitted.table.to_host = fit_copies(samples.to_host, prior.to_host);
  fitted.table.to_device = fit_copies(samples.to_device, prior.to_device);
  return fitted;
}

std::optional<CostTable> prior_cost(const CostTable& seen, const std::vector<core::CompressorSpec>& codecs,
                                    const IdleLinks& idle_links, std::span<const core::CodecUse> uses) {
  constexpr double kOperationUs = 5, kMessageUs = 30;
  constexpr double kElementUs = 2.5e-4;     // 16 GB/s
  constexpr double kInsideByteUs = 2.5e-4;  // 4 GB/s
  constexpr CopyRate kCopy = {10, 4e-5};    // 25 GB/s
  const CollectiveRate* told = find_rate(seen, Kind::all_reduce, core::Level::flat);
  if (told == nullptr) {  // if all gradients are sparse, nothing was summed
    const auto other = std::ranges::find(seen.collectives, core::Level::flat, &CollectiveRate::level);
    if (other == seen.collectives.end()) return {};
    told = &*other;
  }
  const double message_us = told->message_us > 0 ? std::min(told->message_us, kMessageUs) : kMessageUs;
  CostTable prior{.ranks = seen.ranks, .scale_us = kOperationUs, .on_device = seen.on_device};
  if (seen.on_device.gradients) {
    prior.to_host = seen.to_host == CopyRate() ? kCopy : seen.to_host;
    prior.to_device = seen.to_device == CopyRate() ? kCopy : seen.to_device;
  }
  const auto add = [&](Kind kind, core::Level level, double byte_us) {
    const IdleLink& link = idle_links.of(level);
    CollectiveRate rate{kind, level, message_us, byte_us};
    if (link.message_us > 0) {
      rate.message_us = link.message_us;
      rate.wait_us = link.wait_us;
    }
    prior.collectives.push_back(rate);
  };
  // Between nodes, one rank's link would carry the data of all other ranks, so programs with a root are only for the
  // inside of nodes. Payloads do not pass through those programs (admission.h, rule "inside").
  for (const core::Level level : {core::Level::flat, core::Level::inter, core::Level::intra}) {
    if (level != core::Level::flat && !seen.ranks.has_levels()) continue;
    const bool is_inside = level == core::Level::intra;
    const double idle_us = idle_links.of(level).byte_us, told_us = told->byte_us;
    // A sum's bytes wait for each other on a slow link, and a link that was idle when it was probed may be shared
    // since.
    const double outside_us = idle_us > 0 ? std::min(idle_us, told_us) : told_us;
    const double inside_us = idle_us > 0 ? idle_us : std::min(told_us, kInsideByteUs);
    for (const core::StepTraits& kind : core::step_table()) {
      const bool is_planned = is_inside ? kind.takes_gradients : kind.root == core::StepTraits::Root::none;
      if (!kind.is_collective || !is_planned) continue;
      add(kind.kind, level, is_inside ? inside_us : outside_us);
    }
  }
  const double element_us = seen.scale_element_us > 0 ? seen.scale_element_us / 2 : kElementUs;
  for (const core::CompressorSpec& codec : codecs) {
    const auto use = std::ranges::find(uses, core::to_string(codec), &core::CodecUse::codec);
    const double share = use == uses.end() ? 0 : use->share;
    for (const core::Place place : {core::Place::device, core::Place::host}) {
      prior.codecs.push_back({codec, place, kOperationUs, element_us, kOperationUs, element_us, element_us / 4, share});
    }
  }
  return prior;
}

CostTable shifted(const FittedCost& fitted, double errors) {
  CostTable table = fitted.table;
  const auto factor = [&](const RateQuality& quality) { return std::max(0.5, 1 + errors * quality.standard_error()); };
  for (size_t c = 0; c < table.collectives.size(); ++c) {
    table.collectives[c].message_us *= factor(fitted.collectives[c]);
    table.collectives[c].wait_us *= factor(fitted.collectives[c]);
    table.collectives[c].byte_us *= factor(fitted.collectives[c]);
  }
  for (size_t c = 0; c < table.codecs.size(); ++c) {
    CodecRate& rate = table.codecs[c];
    for (double* us :
         {&rate.encode_us, &rate.encode_element_us, &rate.decode_us, &rate.decode_element_us, &rate.decode_byte_us}) {
      *us *= factor(fitted.codecs[c]);
    }
  }
  return table;
}

}  // namespace gradtune::policies
