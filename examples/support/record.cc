// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/support/record.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void Record::add_step(double loss, const gradtune::Optimizer* optimizer) {
  const auto now = std::chrono::steady_clock::now();
  Step step{.ms = std::chrono::duration<double, std::milli>(now - last_).count(), .loss = loss, .progress = {}};
  if (optimizer != nullptr) step.progress = optimizer->progress();
  steps_.push_back(std::move(step));
  last_ = now;
}

double Record::mean_loss(size_t last_steps) const {
  const size_t count = std::min(last_steps, steps_.size());
  double sum = 0;
  for (size_t i = steps_.size() - count; i < steps_.size(); ++i) sum += steps_[i].loss;
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

std::optional<Record::Parts> Record::before() const {
  return medians([](const Step& step) { return step.progress.stage == "observe" && step.progress.step > 1; });
}

std::optional<Record::Parts> Record::imported() const {
  return medians([](const Step& step) { return step.progress.stage == "imported" && step.progress.step > 1; });
}

// A step runs with the strategy in force at the end of the previous step. The first step of a block may include the
// cost of a switch.
std::optional<Record::Parts> Record::confirmed(const std::string& committed, bool is_committed) const {
  const auto is_confirming = [](const Step& step) { return step.progress.stage == "confirm"; };
  const auto end = std::find_if(steps_.rbegin(), steps_.rend(), is_confirming).base();
  const auto begin = std::find_if_not(std::make_reverse_iterator(end), steps_.rend(), is_confirming).base();
  return medians([&](const Step& step) {
    const auto at = steps_.begin() + (&step - steps_.data());
    if (at < begin + 2 || at >= end) return false;
    const std::string& ran = (at - 1)->progress.strategy;
    return ran == (at - 2)->progress.strategy && (ran == committed) == is_committed;
  });
}

std::optional<Record::Parts> Record::medians(const std::function<bool(const Step&)>& wanted) const {
  std::vector<double> total, encode, decode, wait;
  for (const Step& step : steps_) {
    if (!wanted(step)) continue;
    total.push_back(step.ms);
    encode.push_back(step.progress.encode_ms);
    decode.push_back(step.progress.decode_ms);
    wait.push_back(step.progress.wait_ms);
  }
  if (total.empty()) return std::nullopt;
  Parts parts{
      .total = median(total), .compute = 0, .encode = median(encode), .decode = median(decode), .wait = median(wait)};
  parts.compute = parts.total - parts.encode - parts.decode - parts.wait;
  return parts;
}

std::string Record::where_time_went(const gradtune::Optimizer& optimizer) const {
  const gradtune::Optimizer::Result result = optimizer.result();
  if (!result.committed) return "";
  const auto first = confirmed(result.strategy, false), last = confirmed(result.strategy, true);
  if (!first || !last) return "";
  std::string text = "where a step's time went on rank 0, in turns (median ms)  baseline  committed\n";
  const auto row = [&](const char* name, double Parts::*part) {
    char line[112];
    std::snprintf(line, sizeof line, "  %-53s %10.1f %10.1f\n", name, (*first).*part, (*last).*part);
    text += line;
  };
  row("model, optimizer and data", &Parts::compute);
  row("encoding (scaling, compression)", &Parts::encode);
  row("decoding", &Parts::decode);
  row("waiting for communication", &Parts::wait);
  row("step", &Parts::total);
  return text;
}

void Record::write(const std::string& path, const gradtune::Optimizer* optimizer) const {
  using nlohmann::ordered_json;
  const gradtune::Optimizer::Result result = optimizer != nullptr ? optimizer->result() : gradtune::Optimizer::Result();
  const char* network = std::getenv("GRADTUNE_NETWORK");
  ordered_json json{
      {"schema", "gradtune.report/1"}, {"world_size", world_size_}, {"network", network != nullptr ? network : "none"}};
  json["steps"] = ordered_json::array();
  for (const Step& step : steps_) {
    json["steps"].push_back(
        {{"ms", step.ms}, {"loss", step.loss}, {"epoch", step.progress.epoch}, {"stage", step.progress.stage}});
  }
  json["accuracy"] = accuracy ? ordered_json(*accuracy) : ordered_json(nullptr);
  if (perplexity) json["perplexity"] = *perplexity;
  if (optimizer != nullptr) {
    json["fidelity"] = result.fidelity;
    json["baseline_ms"] = result.baseline_ms;
    json["committed_ms"] = result.committed_ms ? ordered_json(*result.committed_ms) : ordered_json(nullptr);
    json["predicted_ms"] = result.predicted_ms ? ordered_json(*result.predicted_ms) : ordered_json(nullptr);
    json["gain"] = result.committed ? ordered_json(result.gain) : ordered_json(nullptr);
    json["gain_low"] = result.committed ? ordered_json(result.gain_low) : ordered_json(nullptr);
    json["story"] = result.story;
    json["tuning"] = {
        {"steps", result.steps},
        {"cost_ms", result.cost_ms},
        {"cost_share", result.cost_share},
        {"first_commit", result.first_commit ? ordered_json(*result.first_commit) : ordered_json(nullptr)}};
    json["strategy"] = {{"label", result.strategy}, {"description", result.description}};
  }
  std::vector<std::pair<const char*, std::optional<Parts>>> profile = {{"imported", imported()}, {"before", before()}};
  if (result.committed) {
    profile.emplace_back("baseline", confirmed(result.strategy, false));
    profile.emplace_back("committed", confirmed(result.strategy, true));
  }
  for (const auto& [name, parts] : profile) {
    if (parts) {
      json["profile"][name] = {{"step_ms", parts->total},
                               {"compute_ms", parts->compute},
                               {"encode_ms", parts->encode},
                               {"decode_ms", parts->decode},
                               {"wait_ms", parts->wait}};
    }
  }
  std::ofstream file(path);
  file << json.dump(1) << "\n";
  if (!file.flush()) throw std::runtime_error("can not write the report " + path);
}
