// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/option.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

#include "engine/core/unknown_name.h"

namespace gradtune::core {
namespace {

using Kind = Step::Kind;
using Root = StepTraits::Root;

constexpr auto kToEachOther = [](int64_t bytes, int group) { return bytes * (group - 1); };  // ring, pairs, to a root
constexpr auto kAround = [](int64_t bytes, int group) { return 2 * bytes * (group - 1) / group; };  // a ring, twice
constexpr auto kThrough = [](int64_t bytes, int group) { return group > 1 ? bytes : 0; };           // a pipeline

constexpr StepTraits kTable[] = {
    {.kind = Kind::encode, .name = "encode", .is_collective = false, .messages = 0, .takes_gradients = true},
    {.kind = Kind::decode, .name = "decode", .is_collective = false, .messages = 0, .takes_payloads = true},
    {.kind = Kind::all_reduce,
     .name = "all_reduce",
     .link_bytes = kAround,
     .messages = 2,
     .adds_up = true,
     .is_in_place = true,
     .takes_gradients = true,
     .takes_payloads = true},
    {.kind = Kind::reduce_scatter,
     .name = "reduce_scatter",
     .link_bytes = kToEachOther,
     .is_pairwise = true,
     .adds_up = true,
     .has_input_parts = true,
     .takes_gradients = true},
    {.kind = Kind::all_gather,
     .name = "all_gather",
     .link_bytes = kToEachOther,
     .has_output_parts = true,
     .takes_gradients = true,
     .takes_payloads = true},
    {.kind = Kind::all_to_all,
     .name = "all_to_all",
     .link_bytes = kToEachOther,
     .is_pairwise = true,
     .has_input_parts = true,
     .has_output_parts = true,
     .takes_payloads = true},
    {.kind = Kind::reduce,
     .name = "reduce",
     .link_bytes = kThrough,
     .adds_up = true,
     .is_in_place = true,
     .root = Root::receives,
     .takes_gradients = true},
    {.kind = Kind::broadcast,
     .name = "broadcast",
     .link_bytes = kThrough,
     .is_in_place = true,
     .root = Root::sends,
     .takes_gradients = true,
     .takes_payloads = true},
    {.kind = Kind::gather,
     .name = "gather",
     .link_bytes = kToEachOther,
     .has_output_parts = true,
     .root = Root::receives,
     .takes_payloads = true},
};
constexpr bool is_in_order() {
  for (size_t row = 0; row < std::size(kTable); ++row) {
    if (static_cast<size_t>(kTable[row].kind) != row) return false;
  }
  return true;
}
static_assert(is_in_order(), "a kind is found by its number");

Error invalid(std::string message) { return {Error::Code::invalid, std::move(message)}; }

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    size_t end = text.find(separator);
    if (end != 0) parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

std::string print(const Step& step) {
  std::string text(to_string(step.kind));
  if (is_collective(step.kind)) {
    if (step.level != Level::flat) text.append("@").append(to_string(step.level));
    return text;
  }
  text += '@';
  text += to_string(step.place);
  if (step.codec != 0) text += '#' + std::to_string(step.codec);
  if (step.round != 0) text += '.' + std::to_string(step.round);
  return text;
}

// Cuts the mark and the number after it off the end of `text` and returns the number: 0 if there is no mark, nothing
// if no number follows it.
std::optional<uint8_t> take_number(std::string_view& text, char mark) {
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return uint8_t{0};
  const std::string_view digits = text.substr(at + 1);
  text = text.substr(0, at);
  uint8_t number = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) return {};
  return number;
}

// One word of a printed program, such as "decode@host#1.1".
Result<Step> parse_step(std::string_view word, size_t codecs) {
  const std::string_view name = word.substr(0, word.find('@'));
  std::optional<Step> step;
  std::vector<std::string_view> names;
  for (const StepTraits& traits : kTable) {
    names.push_back(traits.name);
    if (name == traits.name) step = Step{.kind = traits.kind};
  }
  if (!step) return invalid(unknown_name("step", word, names));
  if (is_collective(step->kind)) {
    for (int level = 0; level < kLevels; ++level) {
      step->level = static_cast<Level>(level);
      if (print(*step) == word) return *step;
    }
    return invalid(
        "step \"" + std::string(word) + "\": the level of a collective is @intra, @inter, a dimension from @dim0 to " +
        print({.kind = step->kind, .level = dimension(kMostDimensions - 1)}).substr(name.size()) + ", or not said");
  }
  std::string_view place = word.substr(name.size());
  const std::optional<uint8_t> round = take_number(place, '.');
  if (!round) return invalid("step \"" + std::string(word) + "\": after . stands the number of a round");
  const std::optional<uint8_t> codec = take_number(place, '#');
  if (!codec) return invalid("step \"" + std::string(word) + "\": after # stands the position of a codec");
  step->round = *round;
  step->codec = *codec;
  if (place == "@device") {
    step->place = Place::device;
  } else if (place == "@host") {
    step->place = Place::host;
  } else {
    return invalid("step \"" + std::string(word) + "\": the place is @device or @host");
  }
  if (step->codec >= codecs) {
    return invalid("step \"" + std::string(word) + "\" names codec " + std::to_string(step->codec) +
                   ", the program has " + std::to_string(codecs));
  }
  return *step;
}

Option program(std::vector<CompressorSpec> codecs, std::initializer_list<Kind> kinds, Place place) {
  Option option{.codecs = std::move(codecs), .steps = {}};
  for (Kind kind : kinds) {
    option.steps.push_back({.kind = kind, .place = is_collective(kind) ? Place::device : place});
  }
  return option;
}

}  // namespace

std::string_view to_string(Place place) { return place == Place::device ? "device" : "host"; }

std::string to_string(Level level) {
  switch (level) {
    case Level::flat: return "flat";
    case Level::intra: return "intra";
    case Level::inter: return "inter";
    default: return "dim" + std::to_string(number_of(level));
  }
}

std::string_view to_string(Step::Kind kind) { return traits_of(kind).name; }

std::span<const StepTraits> step_table() { return kTable; }

const StepTraits& traits_of(Kind kind) {
  const auto row = static_cast<size_t>(kind);
  check(row < std::size(kTable), "a kind of step is in the table");
  return kTable[row];
}

int64_t link_bytes(Kind collective, int64_t bytes, int group) {
  const StepTraits& traits = traits_of(collective);
  return traits.link_bytes == nullptr ? 0 : traits.link_bytes(bytes, group);
}

int messages(Kind collective, int group) { return traits_of(collective).messages * (group - 1); }

int travels(Kind collective, int group) {
  const int all = messages(collective, group);
  return traits_of(collective).is_pairwise ? std::min(all, 1) : all;
}

int collectives_of(const Option& option) {
  return static_cast<int>(std::count_if(option.steps.begin(), option.steps.end(),
                                        [](const Step& step) { return is_collective(step.kind); }));
}

bool uses_levels(const Option& option) {
  return std::ranges::any_of(option.steps, [](const Step& step) {
    return is_collective(step.kind) && (step.level == Level::intra || step.level == Level::inter);
  });
}

bool fits(const Option& option, const Ranks& ranks) {
  return std::ranges::all_of(option.steps,
                             [&](const Step& step) { return !is_collective(step.kind) || ranks.has(step.level); });
}

bool uses_host(const Option& option) {
  return std::any_of(option.steps.begin(), option.steps.end(),
                     [](const Step& step) { return !is_collective(step.kind) && step.place == Place::host; });
}

std::string to_string(const Option& option) {
  std::string text;
  for (const CompressorSpec& codec : option.codecs) {
    text += (text.empty() ? "" : ",") + to_string(codec);
  }
  if (!text.empty()) text += ": ";
  for (size_t i = 0; i < option.steps.size(); ++i) text += (i > 0 ? " " : "") + print(option.steps[i]);
  return text;
}

Result<CompressorSpec> parse_compressor(std::string_view text, TraitsTable known) {
  const std::string_view name = text.substr(0, text.find(':'));
  std::vector<std::string_view> names;
  for (const CompressorTraits& traits : known) {
    names.push_back(traits.name);
    if (traits.name != name) continue;
    CompressorSpec spec{std::string(name), traits.parameter_default};
    if (name.size() == text.size()) return spec;
    const std::string_view digits = text.substr(name.size() + 1);
    if (traits.parameter_name.empty()) {
      return invalid("compressor \"" + std::string(text) + "\": " + std::string(name) + " takes no parameter");
    }
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), spec.parameter);
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
      return invalid("compressor \"" + std::string(text) + "\": " + std::string(traits.parameter_name) +
                     " is not a number");
    }
    if (Status status = check_parameter(traits, spec.parameter); !status) return status.error();
    return spec;
  }
  return invalid(unknown_name("compressor", text, names));
}

Result<std::vector<CompressorSpec>> parse_compressors(std::string_view text, TraitsTable known) {
  constexpr std::string_view kAny = ":*";
  const bool any = text.ends_with(kAny) && text.find(':') == text.size() - kAny.size();
  if (any) text.remove_suffix(kAny.size());
  const Result<CompressorSpec> spec = parse_compressor(text, known);
  if (!spec) return spec.error();
  const CompressorTraits& traits = *traits_of(spec.value(), known);
  if (!any || traits.parameter_search.empty()) return std::vector{spec.value()};
  std::vector<CompressorSpec> specs;
  for (const double setting : traits.parameter_search) specs.push_back({spec.value().name, setting});
  return specs;
}

Result<Option> parse_option(std::string_view text, TraitsTable known) {
  Option option;
  const size_t colon = text.find(": ");
  if (colon != std::string_view::npos) {
    for (std::string_view codec : split(text.substr(0, colon), ',')) {
      Result<CompressorSpec> spec = parse_compressor(codec, known);
      if (!spec) return spec.error();
      option.codecs.push_back(spec.value());
    }
    text = text.substr(colon + 2);
  }
  for (std::string_view word : split(text, ' ')) {
    Result<Step> step = parse_step(word, option.codecs.size());
    if (!step) return step.error();
    option.steps.push_back(step.value());
  }
  if (option.steps.empty()) return invalid("an option has at least one step");
  return option;
}

Option plain_all_reduce() { return program({}, {Kind::all_reduce}, Place::device); }

Option encoded_all_reduce(const CompressorSpec& codec, Place place, int rounds) {
  Option option{.codecs = {codec}, .steps = {}};
  for (int r = 0; r < rounds; ++r) {
    const auto round = static_cast<uint8_t>(r);
    option.steps.push_back({.kind = Kind::encode, .place = place, .round = round});
    option.steps.push_back({.kind = Kind::all_reduce});
    option.steps.push_back({.kind = Kind::decode, .place = place, .round = round});
  }
  return option;
}

Option two_step(const CompressorSpec& codec, Place place) {
  return program({codec}, {Kind::encode, Kind::all_to_all, Kind::decode, Kind::encode, Kind::all_gather, Kind::decode},
                 place);
}

Option gather_payloads(const CompressorSpec& codec, Place place) {
  return program({codec}, {Kind::encode, Kind::all_gather, Kind::decode}, place);
}

Option recursive_doubling(const CompressorSpec& codec, Place place, int ranks) {
  const auto dimensions = static_cast<int>(mesh_of(ranks).size());
  if (dimensions < 2) return gather_payloads(codec, place);
  Option option{.codecs = {codec}, .steps = {}};
  for (int d = 0; d < dimensions; ++d) {
    option.steps.push_back({.kind = Kind::encode, .place = place});
    option.steps.push_back({.kind = Kind::all_gather, .level = dimension(d)});
    option.steps.push_back({.kind = Kind::decode, .place = place});
  }
  return option;
}

}  // namespace gradtune::core
