// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/explanation_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

constexpr double kAlike = 0.005;  // shares of a step
constexpr double kHidden = 0.05;  // communication beyond computation
constexpr double kHelpful = 0.01;
constexpr double kNoise = 0.02;       // by which medians of equally fast steps may differ
constexpr double kNoteworthy = 0.05;  // error of the model

std::string_view name_of(Part part) {
  switch (part) {
    case Part::bytes: return "the transfer of bytes";
    case Part::messages: return "the fixed cost of each message, such as the delay of the network";
    case Part::compressors: return "compressing, scaling and decompressing gradients";
  }
  return "";
}

// "all-reduce"
std::string name_of(core::Step::Kind kind) {
  std::string name(core::to_string(kind));
  std::ranges::replace(name, '_', '-');
  return name;
}

std::string name_of(const Helped& helped) {
  switch (helped.remedy) {
    case Remedy::twice_the_rate: return "a network with twice the rate";
    case Remedy::half_the_delay: return "a network with half the delay";
    case Remedy::faster_compressors: return "compression that is twice as fast";
    case Remedy::lossy:
      return helped.is_guess ? "stronger compression (fidelity \"lossy\"; a guess, because this job never timed it)"
                             : "stronger compression (fidelity \"lossy\")";
  }
  return "";
}

std::string saved(double ms, const Explanation& explanation) {
  return fmt::format("a step of {} ({} less)", in_ms(ms), percent(1 - ms / explanation.expected_ms));
}

// The effect of the best other way on the step, and the buckets for which it is so.
struct Verdicts {
  double least_slower_ms = 0;
  std::vector<int32_t> slower = {}, alike = {}, alone = {};
  std::vector<const BucketReason*> faster = {};

  explicit Verdicts(const Explanation& explanation) {
    for (const BucketReason& bucket : explanation.buckets) {
      if (bucket.others.empty()) {
        alone.push_back(bucket.bucket);
        continue;
      }
      const double more_ms = bucket.others.front().ms - explanation.expected_ms;
      if (more_ms > kAlike * explanation.expected_ms) {
        least_slower_ms = slower.empty() ? more_ms : std::min(least_slower_ms, more_ms);
        slower.push_back(bucket.bucket);
      } else if (more_ms >= -kAlike * explanation.expected_ms) {
        alike.push_back(bucket.bucket);
      } else {
        faster.push_back(&bucket);
      }
    }
  }
};

// "for buckets 0 and 2 "; nothing if there is one bucket in all.
std::string for_buckets(const std::vector<int32_t>& some, size_t all) {
  constexpr size_t kMostNamed = 4;
  if (all == 1) return "";
  if (some.size() == all) return all == 2 ? "for both " : fmt::format("for all {} ", all);
  if (some.size() == 1) return fmt::format("for bucket {} ", some.front());
  if (some.size() > kMostNamed) return fmt::format("for {} of them ", some.size());
  return fmt::format("for buckets {} and {} ", fmt::join(some.begin(), some.end() - 1, ", "), some.back());
}

std::string gradients_of(const BucketReason& bucket) {
  return bucket.first == bucket.last ? bucket.first : bucket.first + " to " + bucket.last;
}

// The time by which a step would be longer if that bucket were sent as the baseline of fp32 sends it. None if it is, or
// if that is not known.
std::optional<double> plain_more_ms(const BucketReason& bucket, const Explanation& explanation) {
  const auto plain = std::ranges::find(bucket.others, bucket.plain, &OtherWay::option);
  if (plain == bucket.others.end()) return {};
  return plain->ms - explanation.expected_ms;
}

// The bucket that gains most from the way it is sent; nothing if none gains much.
std::string most_gained(const Explanation& explanation) {
  const BucketReason* most = nullptr;
  double most_ms = kAlike * explanation.expected_ms;
  for (const BucketReason& bucket : explanation.buckets) {
    const auto more_ms = plain_more_ms(bucket, explanation);
    if (!more_ms || *more_ms <= most_ms) continue;
    most = &bucket;
    most_ms = *more_ms;
  }
  if (most == nullptr) return "";
  const std::string which = explanation.buckets.size() == 1 ? "" : fmt::format("bucket {} gains most: ", most->bucket);
  return fmt::format("; by the model, {}with \"{}\" a step is {} shorter than with \"{}\"", which, way_of(most->option),
                     in_ms(most_ms), way_of(most->plain));
}

// The place of the strategy among those that ran; nothing if it is not known or the only one.
std::string place_of(const Explanation& explanation) {
  const auto own = std::ranges::find(explanation.ran, explanation.label,
                                     [](const RanStrategy& each) { return each.candidate.label; });
  if (own == explanation.ran.end() || explanation.ran.size() < 2) return "";
  const RanStrategy* other = nullptr;
  for (const RanStrategy& each : explanation.ran) {
    if (&each != &*own && (other == nullptr || each.measured_ms < other->measured_ms)) other = &each;
  }
  if (std::abs(other->measured_ms / own->measured_ms - 1) < kNoise) {
    return fmt::format("The job's steps took {}, about as long as those of {} ({}). ", in_ms(own->measured_ms),
                       other->candidate.label, in_ms(other->measured_ms));
  }
  if (other->measured_ms < own->measured_ms) {
    return fmt::format("The job's steps took {}. Of {} strategies that ran, {} took the least, {}. ",
                       in_ms(own->measured_ms), explanation.ran.size(), other->candidate.label,
                       in_ms(other->measured_ms));
  }
  return fmt::format("The job's steps took {}, and those of the next best of {} strategies that ran {} ({}). ",
                     in_ms(own->measured_ms), explanation.ran.size(), in_ms(other->measured_ms),
                     other->candidate.label);
}

std::string why_so(const Explanation& explanation) {
  const Verdicts verdicts(explanation);
  const size_t all = explanation.buckets.size();
  std::string text = place_of(explanation);
  text += fmt::format("Gradients are sent in {}",
                      all == 1 ? std::string("one group (bucket)") : fmt::format("{} groups (buckets)", all));
  if (explanation.left_out > 0) text += fmt::format(", besides {} small ones", count(explanation.left_out));
  text += most_gained(explanation);
  std::vector<std::string> reasons;
  const auto add = [&](const std::vector<int32_t>& buckets, std::string_view what) {
    if (!buckets.empty()) reasons.push_back(for_buckets(buckets, all) + std::string(what));
  };
  add(verdicts.slower, fmt::format("the best other way would make a step {}{} longer",
                                   verdicts.slower.size() > 1 ? "at least " : "", in_ms(verdicts.least_slower_ms)));
  add(verdicts.alike, fmt::format("the best other way would be as good (within {} of a step)", percent(kAlike)));
  for (const BucketReason* bucket : verdicts.faster) {
    add({bucket->bucket}, fmt::format("\"{}\" would save {} by the model", way_of(bucket->others.front().option),
                                      in_ms(explanation.expected_ms - bucket->others.front().ms)));
  }
  add(verdicts.alone, "no other way is known");
  return fmt::format("{}; {}.", text, fmt::join(reasons, "; "));
}

// The model expects computation alone to take longer than whole steps took.
bool is_refuted(const Explanation& explanation) {
  return explanation.measured_ms && explanation.computation_ms > *explanation.measured_ms;
}

// The largest share by which the model is off for a strategy that ran.
double largest_error(const Explanation& explanation) {
  double error = explanation.measured_ms ? std::abs(explanation.expected_ms / *explanation.measured_ms - 1) : 0;
  for (const RanStrategy& each : explanation.ran) error = std::max(error, std::abs(each.error()));
  return error;
}

std::string what_limits(const Explanation& explanation) {
  const double step_ms = explanation.expected_ms;
  std::string text = explanation.is_whole ? "A step" : "From the first gradient on, a step";
  if (is_refuted(explanation)) {
    return text + fmt::format(
                      " was measured to take {}, and the model of this job expects {} for its computation alone, "
                      "so nothing can be said about what limits a step.",
                      in_ms(*explanation.measured_ms), in_ms(explanation.computation_ms));
  }
  text += fmt::format(" is expected to take {}", in_ms(step_ms));
  if (explanation.measured_ms) text += fmt::format(" ({} were measured)", in_ms(*explanation.measured_ms));
  const double communication_ms = std::max(step_ms - explanation.computation_ms, 0.0);
  text += fmt::format(": {} of computation, and {} that communication adds", in_ms(step_ms - communication_ms),
                      in_ms(communication_ms));
  if (communication_ms < kHidden * step_ms) return text + ", so computation is the limit.";
  const Without& most = explanation.without.front();
  return text + fmt::format(", of which {} are {}.", in_ms(step_ms - most.ms), name_of(most.part));
}

// A note if the model's error is not small beside what it promises.
std::string how_sure(const Explanation& explanation, double best_gain) {
  const double error = largest_error(explanation);
  if (error <= kNoteworthy) return "";
  std::string_view so = "so smaller gains are uncertain";
  if (error > best_gain) so = "more than all these gains, so they are uncertain";
  if (best_gain <= kHelpful) so = "so this is uncertain";
  return fmt::format(" The model is off by up to {} for what ran, {}.", percent(error), so);
}

std::string what_helps(const Explanation& explanation) {
  if (is_refuted(explanation)) return "For the same reason there is no advice.";
  const auto helps = [&](const Helped& helped) { return helped.ms < (1 - kHelpful) * explanation.expected_ms; };
  const auto& helped = explanation.helped;
  const bool batch_helps = explanation.larger_batch > kHelpful;
  std::string text;
  if (helped.empty() || !helps(helped.front())) {
    text = "With the same batch, a faster network or faster compression would hardly help.";
    if (!batch_helps) text += " Neither would a larger batch.";
  } else {
    text = fmt::format("With the same batch, {} would help most: {}", name_of(helped.front()),
                       saved(helped.front().ms, explanation));
    if (helped.size() > 1 && helps(helped[1])) {
      text += fmt::format("; next is {}: {}", name_of(helped[1]), saved(helped[1].ms, explanation));
    }
    text += ".";
  }
  if (batch_helps) {
    text +=
        fmt::format(" With twice the batch, each sample would take {} less time.", percent(explanation.larger_batch));
  }
  const double of_helped = helped.empty() ? 0 : 1 - helped.front().ms / explanation.expected_ms;
  return text + how_sure(explanation, std::max(of_helped, explanation.larger_batch));
}

bool is_used(core::Level level, const Explanation& explanation) {
  return std::ranges::any_of(explanation.buckets, [&](const BucketReason& bucket) {
    return std::ranges::any_of(bucket.option.steps, [&](const core::Step& step) {
      return core::is_collective(step.kind) && step.level == level;
    });
  });
}

std::string link_of(core::Level level) {
  if (core::is_dimension(level)) {
    return fmt::format("the link in round {} of recursive doubling", core::number_of(level) + 1);
  }
  return level == core::Level::inter ? "the link between nodes" : "the link between ranks";
}

// The job whose step it is.
std::string where(const Explanation& explanation) {
  std::string text = fmt::format("On {} ranks", explanation.ranks.size);
  if (explanation.ranks.local_size > 1) text += fmt::format(", {} in a node", explanation.ranks.local_size);
  for (const LinkRate& link : explanation.links) {
    if (core::is_dimension(link.level) && !is_used(link.level, explanation)) continue;
    text += "; " + link_of(link.level);
    text += link.mbit_per_s > 0 ? fmt::format(" carries {} Mbit/s ({})", number(link.mbit_per_s), name_of(link.kind))
                                : std::string(" takes no time for bytes that could be measured");
    text += fmt::format(", and each message takes {} more", in_ms(link.message_ms));
  }
  return text + ".";
}

// With its sign, and without a negative zero.
std::string more(std::optional<double> ms) {
  if (!ms) return "-";
  const std::string digits = number(std::abs(*ms));
  return (*ms < 0 && digits != number(0) ? "-" : "+") + digits;
}

std::string buckets_table(const Explanation& explanation) {
  constexpr size_t kNameBytes = 26, kWayBytes = 34;
  constexpr std::string_view kRow = "{:>6}  {:<26}  {:>9}  {:<34}  {:>8}  {:>8}  {:>8}  {:>8}  {}\n";
  std::string text =
      fmt::format(fmt::runtime(kRow), "", "", "", "", "expected", "measured", "if plain", "if other", "");
  text += fmt::format(fmt::runtime(kRow), "bucket", "gradients of", "size", "sent", "ms", "ms", "ms", "ms",
                      "best other way");
  for (const BucketReason& bucket : explanation.buckets) {
    const OtherWay* const other = bucket.others.empty() ? nullptr : &bucket.others.front();
    text +=
        fmt::format(fmt::runtime(kRow), bucket.bucket, shortened(gradients_of(bucket), kNameBytes),
                    in_bytes(bucket.bytes), shortened(way_of(bucket.option), kWayBytes), number(bucket.expected_ms),
                    bucket.measured_ms ? number(*bucket.measured_ms) : "-", more(plain_more_ms(bucket, explanation)),
                    more(other == nullptr ? std::nullopt : std::optional(other->ms - explanation.expected_ms)),
                    other == nullptr ? "-" : way_of(other->option));
  }
  return text +
         "\nExpected, measured: from the bucket's first operation to its last one. Buckets overlap with computation, "
         "and wait for each other within these times, so these do not add up to a step.\nIf plain, if other: how much "
         "longer (-: shorter) a step is expected to be if this bucket alone is sent as by a baseline of fp32 (an "
         "uncompressed all-reduce, or an all-gather of a sparse table's rows), or in the best other way.\n";
}

// A line for each word: "int8:256: ...; block 256; fidelity "lossy"".
std::string legend(const Explanation& explanation) {
  std::string text = "none, uncompressed: gradients as they are\n";
  for (const UsedCompressor& each : explanation.compressors) {
    text += core::to_string(each.spec) + ": " + each.summary;
    if (!each.parameter_name.empty()) text += fmt::format("; {} {:g}", each.parameter_name, each.spec.parameter);
    text += fmt::format("; fidelity \"{}\"\n", core::to_string(each.fidelity));
  }
  return text;
}

std::string ran_table(const Explanation& explanation) {
  if (explanation.ran.empty()) return "";
  std::string text =
      fmt::format("\n{:>8}  {:>8}  {:>7}  {}\n", "measured", "expected", "error", "strategies that ran, ms a step");
  std::vector<RanStrategy> ran = explanation.ran;
  std::ranges::stable_sort(ran, {}, &RanStrategy::measured_ms);
  for (const RanStrategy& each : ran) {
    text += fmt::format("{:>8}  {:>8}  {:>5} %  {}\n", number(each.measured_ms), number(each.expected_ms),
                        std::lround(100 * each.error()), shortened(each.candidate.label, 120));
  }
  return text;
}

}  // namespace

std::string way_of(const core::Option& option) {
  std::string text;
  for (const core::CompressorSpec& codec : option.codecs) {
    if (codec.name != "none") text += (text.empty() ? "" : " and ") + core::to_string(codec);
  }
  if (text.empty()) text = "uncompressed";
  if (core::uses_host(option)) text += " on host cores";
  for (const core::Step& step : option.steps) {
    if (!core::is_collective(step.kind)) continue;
    text += ", " + name_of(step.kind);
    if (step.level == core::Level::intra) text += " in nodes";
    if (step.level == core::Level::inter) text += " between nodes";
  }
  return text;
}

std::vector<std::string> sentences(const Explanation& explanation) {
  return {why_so(explanation), what_limits(explanation), what_helps(explanation)};
}

std::string in_words(const Explanation& explanation, const std::string& headline) {
  std::string text = headline + "\n" + where(explanation) + "\n";
  for (const std::string& sentence : sentences(explanation)) text += sentence + "\n";
  return text + "\n" + buckets_table(explanation) + legend(explanation) + ran_table(explanation);
}

}  // namespace gradtune::tuner
