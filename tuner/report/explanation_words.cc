// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/explanation_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "tuner/report/words.h"

namespace gradtune::tuner {
namespace {

constexpr double kAlike = 0.005;  // shares of a step
constexpr double kHidden = 0.05;  // communication beyond computation
constexpr double kHelpful = 0.01;
constexpr double kFarOff = 0.2;

std::string_view name_of(Part part) {
  switch (part) {
    case Part::bytes: return "the transfer of bytes";
    case Part::messages: return "the fixed cost of each message, such as the delay of the network";
    case Part::compressors: return "compressing, scaling and decompressing gradients";
  }
  return "";
}

std::string name_of(const Helped& helped) {
  switch (helped.remedy) {
    case Remedy::twice_the_rate: return "a network with twice the rate";
    case Remedy::half_the_delay: return "a network with half the delay";
    case Remedy::faster_compressors: return "compression that is twice as fast";
    case Remedy::lossy:
      return helped.is_guess ? "lossy compression (fidelity \"lossy\"; a guess, because this job never timed it)"
                             : "lossy compression (fidelity \"lossy\")";
  }
  return "";
}

std::string saved(double ms, const Explanation& explanation) {
  return fmt::format("a step of {} ({} less)", in_ms(ms), percent(1 - ms / explanation.expected_ms));
}

// The reasons for the buckets, by what the best other way would do to the step.
struct Verdicts {
  std::vector<double> slower_ms = {};
  size_t alike = 0, alone = 0;
  std::vector<const BucketReason*> faster = {};

  explicit Verdicts(const Explanation& explanation) {
    for (const BucketReason& bucket : explanation.buckets) {
      if (bucket.others.empty()) {
        ++alone;
        continue;
      }
      const double more_ms = bucket.others.front().ms - explanation.expected_ms;
      if (more_ms > kAlike * explanation.expected_ms) {
        slower_ms.push_back(more_ms);
      } else if (more_ms >= -kAlike * explanation.expected_ms) {
        ++alike;
      } else {
        faster.push_back(&bucket);
      }
    }
  }
};

std::string how_many(size_t some, size_t all) {
  if (some == all) return all == 2 ? "both" : fmt::format("all {}", all);
  return some == 1 ? "one" : std::to_string(some);
}

std::string gradients_of(const BucketReason& bucket) {
  return bucket.first == bucket.last ? bucket.first : bucket.first + " to " + bucket.last;
}

// The time by which a step would be longer if that bucket were not compressed. None if it is not compressed, or if
// that is not known.
std::optional<double> uncompressed_more_ms(const BucketReason& bucket, const Explanation& explanation) {
  const auto plain = std::ranges::find(bucket.others, core::plain_all_reduce(), &OtherWay::option);
  if (plain == bucket.others.end()) return {};
  return plain->ms - explanation.expected_ms;
}

// The bucket that gains most from its compression; nothing if none gains much.
std::string most_compressed(const Explanation& explanation) {
  const BucketReason* most = nullptr;
  double most_ms = kAlike * explanation.expected_ms;
  for (const BucketReason& bucket : explanation.buckets) {
    const auto more_ms = uncompressed_more_ms(bucket, explanation);
    if (!more_ms || *more_ms <= most_ms) continue;
    most = &bucket;
    most_ms = *more_ms;
  }
  if (most == nullptr) return "";
  const std::string which = explanation.buckets.size() == 1 ? "" : fmt::format("most for bucket {}, ", most->bucket);
  return fmt::format("compression saves {}{} a step; ", which, in_ms(most_ms));
}

std::string why_so(const Explanation& explanation) {
  const Verdicts verdicts(explanation);
  const size_t all = explanation.buckets.size();
  std::string text = fmt::format("Gradients are sent in {}", all == 1 ? std::string("one group (bucket)")
                                                                      : fmt::format("{} groups (buckets)", all));
  if (explanation.left_out > 0) text += fmt::format(", besides {} small ones", count(explanation.left_out));
  std::vector<std::string> reasons;
  const auto add = [&](size_t buckets, std::string_view what) {
    if (buckets == 0) return;
    const std::string_view way = reasons.empty() ? "the best other way to send it" : "it";
    reasons.push_back(all == 1 ? fmt::format("{} {}", way, what)
                               : fmt::format("for {} {} {}", how_many(buckets, all), way, what));
  };
  if (const size_t slower = verdicts.slower_ms.size(); slower > 0) {
    add(slower, fmt::format("would make a step {} longer{}", in_ms(std::ranges::min(verdicts.slower_ms)),
                            slower > 1 ? " or more" : ""));
  }
  add(verdicts.alike, fmt::format("would be as good (within {} of a step)", percent(kAlike)));
  if (!verdicts.faster.empty()) {
    const BucketReason& bucket = **std::ranges::max_element(verdicts.faster, {}, [&](const BucketReason* each) {
      return explanation.expected_ms - each->others.front().ms;
    });
    add(verdicts.faster.size(),
        fmt::format("is expected to be faster ({} for bucket {} would save {}), which only a measurement can confirm",
                    way_of(bucket.others.front().option), bucket.bucket,
                    in_ms(explanation.expected_ms - bucket.others.front().ms)));
  }
  add(verdicts.alone, "is not known");
  return fmt::format("{}; {}{}.", text, most_compressed(explanation), fmt::join(reasons, ", and "));
}

std::string what_limits(const Explanation& explanation) {
  const double step_ms = explanation.expected_ms;
  std::string text = explanation.is_whole ? "A step" : "From the first gradient on, a step";
  text += fmt::format(" is expected to take {}", in_ms(step_ms));
  if (explanation.measured_ms) {
    const double error = step_ms / *explanation.measured_ms - 1;
    text += fmt::format(" ({} were measured{})", in_ms(*explanation.measured_ms),
                        std::abs(error) > kFarOff ? ", so take these forecasts with caution" : "");
  }
  text += fmt::format(", and {} without any communication", in_ms(explanation.computation_ms));
  if (step_ms - explanation.computation_ms < kHidden * step_ms) return text + ": computation is the limit.";
  const Without& most = explanation.without.front();
  return text + fmt::format("; most of the difference is due to {}: if that took no time, a step would take {}.",
                            name_of(most.part), in_ms(most.ms));
}

std::string what_helps(const Explanation& explanation) {
  const double step_ms = explanation.expected_ms;
  const auto helps = [&](const Helped& helped) { return helped.ms < (1 - kHelpful) * step_ms; };
  const auto& helped = explanation.helped;
  const bool batch_helps = explanation.larger_batch > kHelpful;
  std::string text;
  if (helped.empty() || !helps(helped.front())) {
    text = "A faster network or faster compression would hardly help";
    if (!batch_helps) return text + ", and neither would a larger batch.";
  } else {
    std::string first = name_of(helped.front());
    first[0] = static_cast<char>(first[0] - 'a' + 'A');
    text = fmt::format("{} would help most: {}", first, saved(helped.front().ms, explanation));
    if (helped.size() > 1 && helps(helped[1]))
      text += fmt::format("; next is {}: {}", name_of(helped[1]), saved(helped[1].ms, explanation));
    if (!batch_helps) return text + ".";
  }
  return text +
         fmt::format("; twice the batch would take {} less time for each sample.", percent(explanation.larger_batch));
}

std::string more(std::optional<double> ms) {
  if (!ms) return "-";
  const double tenths = std::round(10 * *ms) / 10;
  return fmt::format("{:+.1f}", tenths == 0 ? 0 : tenths);  // without a negative zero
}

std::string buckets_table(const Explanation& explanation) {
  constexpr size_t kNameBytes = 26, kWayBytes = 34;
  constexpr std::string_view kRow = "{:>6}  {:<26}  {:>9}  {:<34}  {:>8}  {:>8}  {:>8}  {:>8}  {}\n";
  std::string text = fmt::format(fmt::runtime(kRow), "", "", "", "", "takes", "measured", "plain", "other", "");
  text += fmt::format(fmt::runtime(kRow), "bucket", "gradients of", "size", "sent", "ms", "ms", "ms", "ms",
                      "best other way");
  for (const BucketReason& bucket : explanation.buckets) {
    const OtherWay* const other = bucket.others.empty() ? nullptr : &bucket.others.front();
    text += fmt::format(fmt::runtime(kRow), bucket.bucket, shortened(gradients_of(bucket), kNameBytes),
                        in_bytes(bucket.bytes), shortened(way_of(bucket.option), kWayBytes), number(bucket.expected_ms),
                        bucket.measured_ms ? number(*bucket.measured_ms) : "-",
                        more(uncompressed_more_ms(bucket, explanation)),
                        more(other == nullptr ? std::nullopt : std::optional(other->ms - explanation.expected_ms)),
                        other == nullptr ? "-" : way_of(other->option));
  }
  return text +
         "\nTakes: from the bucket's first operation to its last one. Plain, other: the step is expected to be "
         "longer by that much if this bucket alone is sent uncompressed, or in the best other way.\n";
}

std::string ran_table(const Explanation& explanation) {
  if (explanation.ran.empty()) return "";
  std::string text = fmt::format("\n{:>8}  {:>8}  {}\n", "measured", "expected", "strategies that ran, ms a step");
  std::vector<RanStrategy> ran = explanation.ran;
  std::ranges::stable_sort(ran, {}, &RanStrategy::measured_ms);
  for (const RanStrategy& each : ran) {
    text += fmt::format("{:>8}  {:>8}  {}\n", number(each.measured_ms), number(each.expected_ms),
                        shortened(each.candidate.label, 120));
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
    std::string name(core::to_string(step.kind));
    std::ranges::replace(name, '_', '-');
    text += ", " + name;
    if (step.level == core::Level::intra) text += " in nodes";
    if (step.level == core::Level::inter) text += " between nodes";
  }
  return text;
}

std::vector<std::string> sentences(const Explanation& explanation) {
  return {why_so(explanation), what_limits(explanation), what_helps(explanation)};
}

std::string in_words(const Explanation& explanation) {
  std::string text = explanation.label + "\n";
  for (const std::string& sentence : sentences(explanation)) text += sentence + "\n";
  return text + "\n" + buckets_table(explanation) + ran_table(explanation);
}

}  // namespace gradtune::tuner
