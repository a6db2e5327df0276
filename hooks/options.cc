// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/options.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <type_traits>

#include "engine/compress/compressor.h"
#include "engine/core/unknown_name.h"
#include "hooks/c10d/allowed_cores.h"
#include "policies/policy.h"
#include "tuner/files/file_io.h"
#include "tuner/files/printable.h"

namespace gradtune {
namespace {

using core::Error;
using core::Status;

Error wrong_option(std::string message) { return {Error::Code::invalid, std::move(message)}; }

// Gives "0.01"; std::to_string would give "0.010000".
template <typename T>
std::string text_of(T number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

template <typename T>
Status parse_number(std::string_view text, T low, T high, T& value, std::string_view of = "") {
  T parsed_value{};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), parsed_value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() ||
      !(parsed_value >= low && parsed_value <= high)) {
    const std::string kind = std::is_integral_v<T> ? "a whole number" : "a number";
    return wrong_option("allowed is " + kind + std::string(of) + " from " + text_of(low) + " to " + text_of(high));
  }
  value = parsed_value;
  return {};
}

Status parse_bool(std::string_view text, bool& value) {
  std::string word(text);
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view yes : {"true", "1", "yes", "on"}) {
    if (word == yes) return value = true, Status();
  }
  for (const std::string_view no : {"false", "0", "no", "off"}) {
    if (word == no) return value = false, Status();
  }
  return wrong_option("allowed are true and false");
}

std::string_view without_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Calls take(word) for each word between commas, until it returns an error.
template <typename Take>
Status for_each_of_list(std::string_view list, const Take& take) {
  for (bool is_last = false; !is_last;) {
    const size_t comma = list.find(',');
    is_last = comma == list.npos;
    if (Status status = take(without_blanks(list.substr(0, comma))); !status) return status;
    list.remove_prefix(is_last ? list.size() : comma + 1);
  }
  return {};
}

Status parse_file(std::string_view text, std::string& value) {
  if (text.empty()) return wrong_option("allowed is the name of a file");
  value = text;
  return {};
}

// Parses a list of files.
Status parse_files(std::string_view text, std::string& value) {
  return for_each_of_list(text, [&](std::string_view name) -> Status {
    if (name.empty()) return wrong_option("allowed are names of files, with commas between them");
    value.append(value.empty() ? "" : ",").append(name);
    return {};
  });
}

std::string join(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ",") + item;
  return text;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> items;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    if (!item.empty()) items.emplace_back(item);
  }
  return items;
}

// The values read so far, before the checks that depend on two options.
struct Draft {
  Settings settings;
  std::optional<std::string> compressors;
};

Status parse_policy(std::string_view text, Draft& draft) {
  auto policy = policies::make_policy(text, {});
  if (!policy) return policy.error();
  draft.settings.policy = text;
  return {};
}

Status parse_timeout(std::string_view text, Draft& draft) {
  double seconds = 0;
  if (Status status = parse_number(text, 0.01, 1e6, seconds, " of seconds"); !status) return status;
  draft.settings.timeout_ms = std::llround(seconds * 1000);
  return {};
}

std::optional<std::string> number_text(const std::optional<int64_t>& value) {
  return value ? std::optional(std::to_string(*value)) : std::nullopt;
}
std::optional<std::string> bool_text(const std::optional<bool>& value) {
  return value ? std::optional<std::string>(*value ? "true" : "false") : std::nullopt;
}
std::optional<std::string> real_text(const std::optional<double>& value) {
  if (!value) return std::nullopt;
  return std::isfinite(*value) ? nlohmann::json(*value).dump() : text_of(*value);  // JSON has no "nan"
}

// The table of options: name, the argument as text, and the parser. The variable is GRADTUNE_<NAME>.
struct Row {
  const char* name;
  std::optional<std::string> (*argument)(const Options&);
  Status (*parse)(std::string_view, Draft&);
};
constexpr int64_t kMost = int64_t{1} << 40;
const Row kRows[] = {
    {"fidelity", [](const Options& o) { return o.fidelity; },
     [](std::string_view text, Draft& d) -> Status {
       auto fidelity = core::parse_fidelity(text);
       if (!fidelity) return fidelity.error();
       d.settings.fidelity = fidelity.value();
       return {};
     }},
    {"compressors", [](const Options& o) { return o.compressors ? std::optional(join(*o.compressors)) : std::nullopt; },
     [](std::string_view text, Draft& d) -> Status {
       d.compressors = text;
       return {};
     }},
    {"error_budget", [](const Options& o) { return real_text(o.error_budget); },
     [](std::string_view text, Draft& d) {
       return parse_number(text, 0.001, 10.0, d.settings.error_budget.emplace());
     }},
    {"lossy_after", [](const Options& o) { return number_text(o.lossy_after); },
     [](std::string_view text, Draft& d) {
       return parse_number<int64_t>(text, 0, kMost, d.settings.lossy_after.emplace(), " of steps");
     }},
    {"policy", [](const Options& o) { return o.policy; }, parse_policy},
    {"strategy", [](const Options& o) { return o.strategy; },
     [](std::string_view text, Draft& d) { return parse_files(text, d.settings.strategy); }},
    {"tuning_budget", [](const Options& o) { return number_text(o.tuning_budget); },
     [](std::string_view text, Draft& d) {
       return parse_number<int64_t>(text, 0, kMost, d.settings.tuning_budget, " of steps");
     }},
    {"tuning_share", [](const Options& o) { return real_text(o.tuning_share); },
     [](std::string_view text, Draft& d) { return parse_number(text, 0.0, 1.0, d.settings.tuning_share); }},
    {"memory_budget", [](const Options& o) { return number_text(o.memory_budget); },
     [](std::string_view text, Draft& d) {
       return parse_number<int64_t>(text, 0, kMost, d.settings.memory_budget, " of bytes");
     }},
    {"host_threads", [](const Options& o) { return number_text(o.host_threads); },
     [](std::string_view text, Draft& d) {
       return parse_number<int64_t>(text, 0, 1024, d.settings.host_threads, " of threads");
     }},
    {"timeout", [](const Options& o) { return real_text(o.timeout); }, parse_timeout},
    {"journal", [](const Options& o) { return o.journal; },
     [](std::string_view text, Draft& d) { return parse_file(text, d.settings.journal); }},
    {"seed", [](const Options& o) { return number_text(o.seed); },
     [](std::string_view text, Draft& d) { return parse_number<uint64_t>(text, 0, INT64_MAX, d.settings.seed); }},
    {"quiet", [](const Options& o) { return bool_text(o.quiet); },
     [](std::string_view text, Draft& d) { return parse_bool(text, d.settings.quiet); }},
    {"broadcast_buffers", [](const Options& o) { return bool_text(o.broadcast_buffers); },
     [](std::string_view text, Draft& d) { return parse_bool(text, d.settings.broadcast_buffers); }},
    {"ignore", [](const Options& o) { return o.ignore ? std::optional(join(*o.ignore)) : std::nullopt; },
     [](std::string_view text, Draft& d) -> Status {
       d.settings.ignored = split(text);
       return {};
     }},
    {"forward_overlap", [](const Options& o) { return bool_text(o.forward_overlap); },
     [](std::string_view text, Draft& d) { return parse_bool(text, d.settings.forward_overlap); }},
    {"collectives", [](const Options& o) { return o.collectives; },
     [](std::string_view text, Draft& d) -> Status {
       constexpr std::string_view kNames[] = {"gloo", "nccl"};
       if (std::ranges::find(kNames, text) == std::end(kNames)) {
         return wrong_option("allowed are gloo and nccl" + core::did_you_mean(text, kNames));
       }
       d.settings.nccl = text == "nccl";
       return {};
     }},
};

std::string variable_of(const char* name) {
  std::string text = "GRADTUNE_";
  for (const char* c = name; *c != '\0'; ++c) text += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  return text;
}

std::vector<std::string_view> option_names() {
  std::vector<std::string_view> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

std::string known_names() {
  std::string names;
  for (const std::string_view name : option_names()) names.append(names.empty() ? "" : ", ").append(name);
  return names;
}

// For an unknown variable: the known variable, of an option or of something else, that was probably meant.
std::string meant_variable(std::string_view variable, std::span<const std::string> others) {
  std::vector<std::string> variables(others.begin(), others.end());
  for (const Row& row : kRows) variables.push_back(variable_of(row.name));
  // Compares only the part after the prefix, because the common prefix would make all names similar.
  constexpr size_t kPrefix = std::string_view("GRADTUNE_").size();
  std::vector<std::string_view> names;
  for (const std::string& each : variables) names.push_back(std::string_view(each).substr(kPrefix));
  return core::did_you_mean(variable.substr(kPrefix), names);
}

// Values by option name, each with its origin, for errors.
struct Found {
  std::string text, origin;
};

Status read_variables(const std::vector<std::string>& variables, std::map<std::string, Found>& found,
                      std::string& config) {
  // These are not options of wrap: the file of options, the state of an emulated network (examples/cluster), the
  // name of this node (launcher.h), and the location of NCCL (nccl_group.h).
  const std::string others[] = {"GRADTUNE_CONFIG", "GRADTUNE_NETWORK", "GRADTUNE_NODE", "GRADTUNE_PACING_MBIT",
                                "GRADTUNE_NCCL_LIBRARY"};
  for (const std::string& variable : variables) {
    const std::string name = variable.substr(0, variable.find('='));
    const std::string value = variable.substr(name.size() + 1);
    if (value.empty()) continue;
    if (name == others[0]) config = value;
    if (std::find(std::begin(others), std::end(others), name) != std::end(others)) continue;
    const Row* row =
        std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return variable_of(r.name) == name; });
    if (row == std::end(kRows)) {
      return wrong_option("variable " + name + " is unknown" + meant_variable(name, others) +
                          "; GRADTUNE_ is followed by one of CONFIG, NETWORK, NODE, PACING_MBIT, NCCL_LIBRARY, " +
                          known_names() + " in capitals");
    }
    found[row->name] = {value, "variable " + name};
  }
  return {};
}

Status read_config(const std::string& path, std::map<std::string, Found>& found) {
  auto text = tuner::read_file(path, 1 << 20);
  if (!text) return Error{text.error().code, "variable GRADTUNE_CONFIG: " + text.error().message};
  const auto json = nlohmann::json::parse(text.value(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return wrong_option("file " + path + " (GRADTUNE_CONFIG) is not a JSON object");
  for (const auto& [key, value] : json.items()) {
    const Row* row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return key == r.name; });
    if (row == std::end(kRows))
      return wrong_option("file " + path + ": " + core::unknown_name("option", key, option_names()));
    std::string as_text;
    if (value.is_array()) {
      for (const auto& item : value)
        as_text += (as_text.empty() ? "" : ",") + (item.is_string() ? item.get<std::string>() : item.dump());
    } else {
      as_text = value.is_string() ? value.get<std::string>() : value.dump();
    }
    found.try_emplace(key, Found{as_text, "file " + path});
  }
  return {};
}

// The codecs of the allow-list, which the fidelity must admit.
Status choose_codecs(Draft& draft) {
  const core::TraitsTable known = compress::known_traits();
  Settings& settings = draft.settings;
  if (!draft.compressors) return {};  // the default depends on the optimizer
  if (without_blanks(*draft.compressors).empty()) {
    return wrong_option("the list is empty; allowed are names of compressors, \"none\" for none of them");
  }
  settings.codecs = {core::parse_compressor("none", known).value()};
  return for_each_of_list(*draft.compressors, [&](std::string_view word) -> Status {
    auto specs = core::parse_compressors(word, known);
    if (!specs) return specs.error();
    const core::CompressorTraits* const traits = core::traits_of(specs.value().front(), known);
    if (traits->fidelity > settings.fidelity) {
      return wrong_option("compressor \"" + std::string(word) + "\" needs fidelity " +
                          std::string(core::to_string(traits->fidelity)) + ", allowed is " +
                          std::string(core::to_string(settings.fidelity)) + "; set option fidelity to " +
                          std::string(core::to_string(traits->fidelity)) + " for it");
    }
    for (const core::CompressorSpec& spec : specs.value()) {
      if (std::find(settings.codecs.begin(), settings.codecs.end(), spec) == settings.codecs.end()) {
        settings.codecs.push_back(spec);
      }
    }
    return {};
  });
}

// The training thread keeps a core; the other cores of this process's share of the machine may compress.
int64_t spare_cores() {
  // Other ranks of the node may run on the same cores, unless each rank is pinned to cores of its own.
  const int64_t even_share = sysconf(_SC_NPROCESSORS_ONLN) / local_world_size(environment_variable).value_or(1);
  return std::max<int64_t>(0, std::min<int64_t>(allowed_cores().count, even_share) - 1);
}

core::Result<Settings> read_options(const Options& options, const std::vector<std::string>& variables,
                                    std::chrono::milliseconds timeout) {
  std::map<std::string, Found> found;
  std::string config;
  if (Status status = read_variables(variables, found, config); !status) return status.error();
  if (!config.empty()) {
    if (Status status = read_config(config, found); !status) return status.error();
  }
  Draft draft;
  draft.settings.host_threads = spare_cores();
  draft.settings.timeout_ms = timeout.count();
  for (const Row& row : kRows) {
    if (const auto argument = row.argument(options)) found[row.name] = {*argument, "argument"};
    const auto value = found.find(row.name);
    if (value == found.end()) continue;
    if (Status status = row.parse(value->second.text, draft); !status) {
      return wrong_option(std::string("option ") + row.name + " (" + value->second.origin + ") is \"" +
                          value->second.text + "\": " + status.error().message);
    }
  }
  if (Status status = choose_codecs(draft); !status) {
    const auto origin = found.find("compressors");
    return wrong_option("option compressors (" + (origin == found.end() ? "default" : origin->second.origin) +
                        "): " + status.error().message);
  }
  return draft.settings;
}

}  // namespace

core::Result<Settings> resolve(const Options& options, const std::vector<std::string>& variables,
                               std::chrono::milliseconds timeout) {
  auto settings = read_options(options, variables, timeout);
  if (settings) return settings;
  return Error{settings.error().code, tuner::printable("gradtune: " + settings.error().message)};
}

std::vector<std::string> gradtune_variables() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("GRADTUNE_")) variables.emplace_back(*variable);
  }
  return variables;
}

tuner::TunerOptions tuner_options(const Settings& settings) {
  std::optional<int> lossy_after;
  if (settings.lossy_after) lossy_after = static_cast<int>(std::min<int64_t>(*settings.lossy_after, INT32_MAX));
  return {.seed = settings.seed,
          .budget_steps = static_cast<int>(std::min<int64_t>(settings.tuning_budget, INT32_MAX)),
          .budget_share = settings.tuning_share,
          .lossy_after = lossy_after,
          .optimizers = settings.optimizers,
          .has_error_budget = settings.error_budget.has_value()};
}

}  // namespace gradtune
