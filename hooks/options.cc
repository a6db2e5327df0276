// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/options.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/core/unknown_name.h"
#include "hooks/c10d/allowed_cores.h"
#include "hooks/option_table.h"
#include "tuner/files/file_io.h"
#include "tuner/files/printable.h"

namespace gradtune {
namespace {

using core::Error;
using core::Status;

Error wrong_option(std::string message) { return {Error::Code::invalid, std::move(message)}; }

std::string variable_of(const char* name) {
  std::string text = "GRADTUNE_";
  for (const char* c = name; *c != '\0'; ++c) text += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  return text;
}

std::string known_names() {
  std::string names;
  for (const std::string_view name : option_names()) names.append(names.empty() ? "" : ", ").append(name);
  return names;
}

// For an unknown variable: the known variable, of an option or of something else, that was probably meant.
std::string meant_variable(std::string_view variable, std::span<const std::string> others) {
  std::vector<std::string> variables(others.begin(), others.end());
  for (const OptionRow& row : option_table()) variables.push_back(variable_of(row.name));
  // Compares only the part after the prefix, because the common prefix would make all names similar.
  constexpr size_t kPrefix = std::string_view("GRADTUNE_").size();
  std::vector<std::string_view> names;
  for (const std::string& each : variables) names.push_back(std::string_view(each).substr(kPrefix));
  return core::did_you_mean(variable.substr(kPrefix), names);
}

// Texts by option name, each with its origin, for errors.
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
    const auto row =
        std::ranges::find_if(option_table(), [&](const OptionRow& each) { return variable_of(each.name) == name; });
    if (row == option_table().end()) {
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
    if (find_option(key) == nullptr) {
      return wrong_option("file " + path + ": " + core::unknown_name("option", key, option_names()));
    }
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
  Settings settings;
  settings.host_threads = spare_cores();
  settings.timeout_ms = timeout.count();
  for (const OptionRow& row : option_table()) {
    const auto text = found.find(row.name);
    const auto wrong = [&](const std::string& origin, const std::string& value, const Error& error) {
      return wrong_option(std::string("option ") + row.name + " (" + origin + ") is \"" + value +
                          "\": " + error.message);
    };
    if (const auto argument = given_in(options, row)) {
      if (Status status = take(row, *argument, settings); !status) {
        return wrong("argument", text_of(*argument), status.error());
      }
    } else if (text != found.end()) {
      const auto value = parse(row, text->second.text);
      const Status status = value ? take(row, value.value(), settings) : value.error();
      if (!status) return wrong(text->second.origin, text->second.text, status.error());
    }
  }
  return settings;
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

tuner::Job tuner_job(const Settings& settings) {
  return {.fidelity = settings.fidelity,
          .codecs = settings.codecs,
          .codecs_from = settings.codecs_from,
          .host_threads = static_cast<int>(settings.host_threads),
          .memory_bytes = settings.memory_budget,
          .forward_overlap = settings.forward_overlap,
          .policy = settings.policy,
          .tuning = tuner_options(settings)};
}

}  // namespace gradtune
