// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/option_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <type_traits>

#include "engine/compress/compressor.h"
#include "engine/core/unknown_name.h"
#include "policies/policy.h"

namespace gradtune {
namespace {

using core::Status;

core::Error not_allowed(std::string message) { return {core::Error::Code::invalid, std::move(message)}; }

std::string_view without_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// The words between commas; one empty word if the list is empty.
std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> words;
  for (bool is_last = false; !is_last;) {
    const size_t comma = list.find(',');
    is_last = comma == list.npos;
    words.emplace_back(without_blanks(list.substr(0, comma)));
    list.remove_prefix(is_last ? list.size() : comma + 1);
  }
  return words;
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

template <typename T>
struct Inner {
  using type = T;
};
template <typename T>
struct Inner<std::optional<T>> {
  using type = T;
};

// Stores a flag or a number as it is.
template <auto kMember>
Status store(const OptionValue& value, Settings& settings) {
  using Member = typename Inner<std::remove_reference_t<decltype(settings.*kMember)>>::type;
  using Number = std::conditional_t<std::is_floating_point_v<Member>, double, int64_t>;
  using Given = std::conditional_t<std::is_same_v<Member, bool>, bool, Number>;
  settings.*kMember = static_cast<Member>(std::get<Given>(value));
  return {};
}

Status take_fidelity(const OptionValue& value, Settings& settings) {
  auto fidelity = core::parse_fidelity(std::get<std::string>(value));
  if (!fidelity) return fidelity.error();
  settings.fidelity = fidelity.value();
  return {};
}

// Takes the allow-list of codecs, which the fidelity must admit.
Status take_compressors(const OptionValue& value, Settings& settings) {
  const core::TraitsTable known = compress::known_traits();
  const std::string list = join(std::get<std::vector<std::string>>(value));
  if (without_blanks(list).empty()) {
    return not_allowed("the list is empty; allowed are names of compressors, \"none\" for none of them");
  }
  settings.codecs = {core::parse_compressor("none", known).value()};
  for (const std::string& word : split(list)) {
    auto specs = core::parse_compressors(word, known);
    if (!specs) return specs.error();
    const core::CompressorTraits* const traits = core::traits_of(specs.value().front(), known);
    const std::string needed(core::to_string(traits->fidelity));
    if (traits->fidelity > settings.fidelity) {
      return not_allowed("compressor \"" + word + "\" needs fidelity " + needed + ", allowed is " +
                         std::string(core::to_string(settings.fidelity)) + "; set option fidelity to " + needed +
                         " for it");
    }
    for (const core::CompressorSpec& spec : specs.value()) {
      if (std::ranges::find(settings.codecs, spec) == settings.codecs.end()) settings.codecs.push_back(spec);
    }
  }
  return {};
}

Status take_strategy(const OptionValue& value, Settings& settings) {
  const std::vector<std::string> names = split(std::get<std::string>(value));
  if (std::ranges::any_of(names, &std::string::empty)) {
    return not_allowed("allowed are names of files, with commas between them");
  }
  const bool is_none = names == std::vector<std::string>{"none"};
  settings.strategy = is_none ? "" : join(names);
  return {};
}

Status take_timeout(const OptionValue& value, Settings& settings) {
  settings.timeout_ms = std::llround(std::get<double>(value) * 1000);
  return {};
}

Status take_collectives(const OptionValue& value, Settings& settings) {
  constexpr std::string_view kNames[] = {"auto", "gloo", "nccl"};  // in the order of Collectives
  const auto& name = std::get<std::string>(value);
  const auto* const found = std::ranges::find(kNames, name);
  if (found == std::end(kNames)) {
    return not_allowed("allowed are auto, gloo and nccl" + core::did_you_mean(name, kNames));
  }
  settings.collectives = static_cast<Collectives>(found - std::begin(kNames));
  return {};
}

Status take_journal(const OptionValue& value, Settings& settings) {
  settings.journal = std::get<std::string>(value);
  return settings.journal.empty() ? Status(not_allowed("allowed is the name of a file")) : Status();
}

Status take_ignored(const OptionValue& value, Settings& settings) {
  settings.ignored = std::get<std::vector<std::string>>(value);
  std::erase(settings.ignored, "");
  return {};
}

Status take_policy(const OptionValue& value, Settings& settings) {
  settings.policy = std::get<std::string>(value);
  auto policy = policies::make_policy(settings.policy, {});
  return policy ? Status() : Status(policy.error());
}

std::string codecs_of(const Settings& settings) {
  std::vector<std::string> names;
  for (const core::CompressorSpec& codec : settings.codecs) names.push_back(core::to_string(codec));
  return join(names);
}

template <bool Settings::*kMember>
std::string flag_of(const Settings& settings) {
  return settings.*kMember ? "true" : "false";
}

constexpr int64_t kMost = int64_t{1} << 40;
const OptionRow kTable[] = {
    {.name = "fidelity",
     .otherwise = "half",
     .sentence =
         "Changes to training that tuning may make: exact, half (also 16 bits on the wire) or lossy (also lossy "
         "compressors, with error feedback).",
     .type = Text{&Options::fidelity},
     .take = take_fidelity,
     .agreed = [](const Settings& of) { return std::string(core::to_string(of.fidelity)); }},
    {.name = "compressors",
     .otherwise = "the default list",
     .sentence = "Compressors that are allowed, such as topk:0.02 or bf16.",
     .type = Texts{&Options::compressors},
     .take = take_compressors,
     .agreed = codecs_of},
    {.name = "error_budget",
     .otherwise = "twice the error seen in trainings, or just before",
     .sentence = "Largest one-step error of a compressed bucket, relative to its norm.",
     .type = Real{&Options::error_budget, 0.001, 10},
     .take = store<&Settings::error_budget>},
    {.name = "strategy",
     .otherwise = "none",
     .sentence = "File to start from, as export_strategy() wrote it.",
     .type = Text{&Options::strategy},
     .take = take_strategy,
     .agreed = [](const Settings& of) { return std::string(of.strategy.empty() ? "not set" : "a file"); }},
    {.name = "tuning_budget",
     .otherwise = "400",
     .sentence = "Steps after which tuning ends; with 0 nothing is tuned, and the strategy of the file (or the "
                 "baseline) is pinned.",
     .type = Whole{&Options::tuning_budget, 0, kMost, " of steps"},
     .take = store<&Settings::tuning_budget>,
     .agreed = [](const Settings& of) { return std::string(of.tuning_budget == 0 ? "0" : "above 0"); }},
    {.name = "timeout",
     .otherwise = "the process group's",
     .sentence = "Seconds that one communication may take.",
     .type = Real{&Options::timeout, 0.01, 1e6, " of seconds"},
     .take = take_timeout},
    {.name = "collectives",
     .otherwise = "auto",
     .sentence =
         "Transport of gradients: auto (nccl if it is the process group's backend for their device, else gloo), "
         "gloo (through the host) or nccl.",
     .type = Text{&Options::collectives},
     .take = take_collectives},
    {.name = "journal",
     .otherwise = "none",
     .sentence = "File (JSON lines) to which rank 0 writes every step, measurement and decision.",
     .type = Text{&Options::journal},
     .take = take_journal},
    {.name = "quiet",
     .otherwise = "false",
     .sentence = "No progress on standard error.",
     .type = Flag{&Options::quiet},
     .take = store<&Settings::quiet>},
    {.name = "broadcast_buffers",
     .otherwise = "true",
     .sentence = "All ranks get rank 0's buffers, such as the running statistics of BatchNorm, after wrap() and after "
                 "every backward pass.",
     .type = Flag{&Options::broadcast_buffers},
     .take = store<&Settings::broadcast_buffers>,
     .agreed = flag_of<&Settings::broadcast_buffers>},
    {.name = "ignore",
     .otherwise = "none",
     .sentence = "Names of parameters, buffers or modules that each rank keeps for itself, such as a rank's experts: "
                 "they are not sent, compared or averaged.",
     .type = Texts{&Options::ignore},
     .take = take_ignored},
    // Options for experts.
    {.name = "policy",
     .otherwise = "auto",
     .sentence = "The policy that proposes strategies: auto, mergecomp, fixed or exhaustive.",
     .type = Text{&Options::policy},
     .take = take_policy},
    {.name = "tuning_share",
     .otherwise = "0.25",
     .sentence = "Share of time lost against the baseline after which tuning ends.",
     .type = Real{&Options::tuning_share, 0, 1},
     .take = store<&Settings::tuning_share>},
    {.name = "lossy_after",
     .otherwise = "the need of each compressor",
     .sentence = "Steps before any lossy compressor may run.",
     .type = Whole{&Options::lossy_after, 0, kMost, " of steps"},
     .take = store<&Settings::lossy_after>,
     .agreed = [](const Settings& of) { return of.lossy_after ? std::to_string(*of.lossy_after) : "not set"; }},
    {.name = "memory_budget",
     .otherwise = "no limit",
     .sentence = "Bytes of residuals and payloads.",
     .type = Whole{&Options::memory_budget, 0, kMost, " of bytes"},
     .take = store<&Settings::memory_budget>},
    {.name = "host_threads",
     .otherwise = "cores - 1",
     .sentence = "Threads that may compress beside the training thread.",
     .type = Whole{&Options::host_threads, 0, 1024, " of threads"},
     .take = store<&Settings::host_threads>},
    {.name = "seed",
     .otherwise = "0",
     .sentence = "Seed of the tuner's random choices and of random compressors.",
     .type = Whole{&Options::seed, 0, INT64_MAX},
     .take = store<&Settings::seed>,
     .agreed = [](const Settings& of) { return std::to_string(of.seed); }},
    {.name = "forward_overlap",
     .otherwise = "false",
     .sentence = "Gradients may stay in flight during the next forward pass, if that is proven faster.",
     .type = Flag{&Options::forward_overlap},
     .take = store<&Settings::forward_overlap>,
     .agreed = flag_of<&Settings::forward_overlap>},
};

// Gives "0.01"; std::to_string would give "0.010000".
template <typename T>
std::string short_text(T number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

template <typename Range>
core::Error out_of(const Range& range) {
  const std::string kind = std::is_same_v<Range, Whole> ? "a whole number" : "a number";
  return not_allowed("allowed is " + kind + range.unit + " from " + short_text(range.low) + " to " +
                     short_text(range.high));
}

template <typename Number, typename Range>
core::Result<OptionValue> parse_number(std::string_view text, const Range& range) {
  Number number{};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return out_of(range);
  return OptionValue(number);
}

core::Result<OptionValue> parse_as(std::string_view text, const Whole& type) {
  return parse_number<int64_t>(text, type);
}
core::Result<OptionValue> parse_as(std::string_view text, const Real& type) { return parse_number<double>(text, type); }
core::Result<OptionValue> parse_as(std::string_view text, const Text& /*type*/) {
  return OptionValue(std::string(text));
}
core::Result<OptionValue> parse_as(std::string_view text, const Texts& /*type*/) { return OptionValue(split(text)); }
core::Result<OptionValue> parse_as(std::string_view text, const Flag& /*type*/) {
  std::string word(text);
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::string_view kYes[] = {"true", "1", "yes", "on"}, kNo[] = {"false", "0", "no", "off"};
  if (std::ranges::find(kYes, word) != std::end(kYes)) return OptionValue(true);
  if (std::ranges::find(kNo, word) != std::end(kNo)) return OptionValue(false);
  return not_allowed("allowed are true and false");
}

Status check_range(const OptionType& type, const OptionValue& value) {
  if (const auto* const whole = std::get_if<Whole>(&type)) {
    const int64_t number = std::get<int64_t>(value);
    if (number < whole->low || number > whole->high) return out_of(*whole);
  }
  if (const auto* const real = std::get_if<Real>(&type)) {
    const double number = std::get<double>(value);
    if (!(number >= real->low && number <= real->high)) return out_of(*real);  // also if it is no number
  }
  return {};
}

}  // namespace

std::span<const OptionRow> option_table() { return kTable; }

const OptionRow* find_option(std::string_view name) {
  const auto* const found = std::ranges::find_if(kTable, [&](const OptionRow& row) { return name == row.name; });
  return found == std::end(kTable) ? nullptr : found;
}

std::vector<std::string_view> option_names() {
  std::vector<std::string_view> names;
  for (const OptionRow& row : kTable) names.emplace_back(row.name);
  return names;
}

std::optional<OptionValue> given_in(const Options& options, const OptionRow& row) {
  return std::visit(
      [&](const auto& type) -> std::optional<OptionValue> {
        const auto& given = options.*type.member;
        return given ? std::optional<OptionValue>(*given) : std::nullopt;
      },
      row.type);
}

core::Result<OptionValue> parse(const OptionRow& row, std::string_view text) {
  return std::visit([&](const auto& type) { return parse_as(text, type); }, row.type);
}

core::Status take(const OptionRow& row, const OptionValue& value, Settings& settings) {
  if (Status in_range = check_range(row.type, value); !in_range) return in_range;
  return row.take(value, settings);
}

core::Error out_of_range(const OptionRow& row) {
  if (const auto* const whole = std::get_if<Whole>(&row.type)) return out_of(*whole);
  return out_of(std::get<Real>(row.type));
}

std::string text_of(const OptionValue& value) {
  struct Write {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return std::to_string(number); }
    // JSON writes a number in the shortest form, but has no "nan".
    std::string operator()(double number) const {
      return std::isfinite(number) ? nlohmann::json(number).dump() : short_text(number);
    }
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(const std::vector<std::string>& words) const { return join(words); }
  };
  return std::visit(Write{}, value);
}

}  // namespace gradtune
