// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/saved_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/core/arenas.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/journal_writer.h"
#include "tuner/files/strict_json.h"

namespace gradtune::tuner {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMostSteps = int64_t{1} << 48;
constexpr double kMostMs = 1e12, kMostLoss = 1e300;
constexpr int32_t kMostSlot = std::numeric_limits<int32_t>::max();
constexpr size_t kMostSlots = 64, kMostCodecBytes = 1000, kMostJournalBytes = size_t{1} << 28;
// Large models, with a strategy in each of several slots, fit into these limits.
constexpr JsonLimits kLimits{.bytes = int64_t{1} << 30, .entries = 40'000'000};

ordered_json json_of(const StrategyFile& file) { return ordered_json::parse(to_json(file)); }

template <typename T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json json_of(const core::Excess& excess) {
  return {{"kind", static_cast<int>(excess.kind)},
          {"bucket", excess.bucket},
          {"value", excess.value},
          {"allowed", excess.allowed}};
}

template <typename Value>
const Value& json_of(const Value& value) {
  return value;
}

ordered_json json_of(const LocalStep& local) {
  ordered_json json;
  core::for_each_field(kLocalStepFields, [&](const auto& field) { json[field.name] = json_of(local.*field.member); });
  return json;
}

ordered_json json_of(const Agreement::State& state) {
  ordered_json slots = ordered_json::array(), pending;
  for (const auto& [slot, hash] : state.slots) slots.push_back({slot, hex(hash)});
  if (state.pending) {
    pending = {{"slot", state.pending->slot},
               {"answered", state.pending->answered},
               {"hash", state.pending->hash ? ordered_json(hex(*state.pending->hash)) : ordered_json()}};
  }
  return {{"slot", state.slot},
          {"epoch", state.epoch},
          {"slots", std::move(slots)},
          {"pending", std::move(pending)},
          {"failed_slot", or_null(state.failed_slot)},
          {"begun", state.begun},
          {"last_slot", state.last_slot},
          {"last_finite", state.last_finite}};
}

template <int N>
ordered_json json_of(const ErrorBudget::Window<N>& window) {
  const auto end = window.values.begin() + std::min(window.count, N);
  return {{"count", window.count}, {"values", std::vector<double>(window.values.begin(), end)}};
}

ordered_json json_of(const ErrorBudget::State& state) {
  ordered_json buckets = ordered_json::array(), committed = ordered_json::array();
  for (const auto& [errors, ratios, norms, ratio_levels, norm_levels] : state.buckets) {
    buckets.push_back({{"errors", json_of(errors)},
                       {"ratios", json_of(ratios)},
                       {"norms", json_of(norms)},
                       {"ratio_levels", json_of(ratio_levels)},
                       {"norm_levels", json_of(norm_levels)}});
  }
  for (const auto& [bucket, errors] : state.committed) {
    committed.push_back({{"bucket", hex(bucket)}, {"errors", json_of(errors)}});
  }
  return {{"is_committed", state.is_committed}, {"buckets", std::move(buckets)}, {"committed", std::move(committed)}};
}

ordered_json json_of(const exec::ResidualOwners& holders) {
  ordered_json all = ordered_json::array();
  for (size_t arena = 0; arena < holders.size(); ++arena) {
    for (const exec::OwnedRange& held : holders[arena]) all.push_back({arena, held.begin, held.end, held.codecs});
  }
  return all;
}

ordered_json json_of(const std::map<int32_t, core::Content>& contents) {
  ordered_json all = ordered_json::array();
  for (const auto& [tensor, content] : contents) {
    all.push_back({tensor, content.row, content.of_one, content.of_all, content.high_one, content.high_all});
  }
  return all;
}

// Reads in a straight line; the reader keeps the first error.
class Parser {
 public:
  explicit Parser(core::TraitsTable known) : known_(known) {}

  core::Result<SavedRank> rank(const JsonValue& root) {
    SavedRank saved;
    const JsonObject& top = in_.object(root, "state",
                                       {"step", "nonfinite_steps", "random_step", "order_learned", "committed", "local",
                                        "agreement", "errors", "holders", "contents", "strategies"});
    saved.step = integer(top, "step", 0, kMostSteps);
    saved.nonfinite_steps = integer(top, "nonfinite_steps", 0, kMostSteps);
    saved.random_step = static_cast<uint32_t>(integer(top, "random_step", 0, std::numeric_limits<uint32_t>::max()));
    saved.order_learned = flag(top, "order_learned");
    saved.committed = flag(top, "committed");
    saved.local = local(JsonReader::member(top, "local"));
    saved.agreement = agreement(JsonReader::member(top, "agreement"));
    saved.errors = errors(JsonReader::member(top, "errors"));
    saved.holders = holders(JsonReader::member(top, "holders"));
    saved.contents = contents(JsonReader::member(top, "contents"));
    for (const JsonValue& entry : in_.array(JsonReader::member(top, "strategies"), "strategies")) {
      const JsonObject& line = in_.object(entry, "strategies", {"slot", "strategy"});
      const auto slot = static_cast<int32_t>(integer(line, "slot", 0, kMostSlot));
      if (!in_.ok()) break;
      saved.strategies[slot] = strategy(JsonReader::member(line, "strategy"));
    }
    if (in_.ok()) check(saved);
    if (!in_.ok()) return *in_.error();
    return saved;
  }

  core::Result<SavedTuner> tuner(const JsonValue& root) {
    SavedTuner saved;
    const JsonObject& top =
        in_.object(root, "tuner", {"journal", "ready_count", "committed", "timed", "timed_in_observation"});
    auto journal = parse_journal(in_.text(JsonReader::member(top, "journal"), "journal", kMostJournalBytes));
    if (in_.ok() && !journal) in_.fail("journal", journal.error().message);
    for (const JsonValue& entry : in_.array(JsonReader::member(top, "ready_count"), "ready_count")) {
      saved.ready_count.push_back(in_.integer(entry, "ready_count", 0, kMostSteps));
    }
    if (const JsonValue& committed = JsonReader::member(top, "committed"); !committed.is_null()) {
      saved.committed = strategy(committed);
    }
    for (const JsonValue& entry : in_.array(JsonReader::member(top, "timed"), "timed")) {
      const JsonArray& pair = in_.array(entry, "timed");
      if (pair.size() != 2) in_.fail("timed", "[slot, steps] is needed");
      if (!in_.ok()) break;
      saved.timed[static_cast<int32_t>(in_.integer(pair[0], "timed", 0, kMostSlot))] =
          static_cast<int>(in_.integer(pair[1], "timed", 0, kMostSlot));
    }
    saved.timed_in_observation = flag(top, "timed_in_observation");
    if (!in_.ok()) return *in_.error();
    saved.job = std::move(journal.value().job);
    if (saved.ready_count.size() != saved.job.table.tensors.size()) {
      in_.fail("ready_count", fmt::format("one for each of {} tensors is needed, found {}",
                                          saved.job.table.tensors.size(), saved.ready_count.size()));
      return *in_.error();
    }
    return saved;
  }

 private:
  int64_t integer(const JsonObject& object, std::string_view name, int64_t least, int64_t most) {
    return in_.integer(JsonReader::member(object, name), name, least, most);
  }
  double ms(const JsonObject& object, std::string_view name) {
    return in_.number(JsonReader::member(object, name), name, -kMostMs, kMostMs);
  }
  bool flag(const JsonObject& object, std::string_view name) {
    return in_.flag(JsonReader::member(object, name), name);
  }
  StrategyFile strategy(const JsonValue& value) {
    auto file = parse_strategy(value, known_);
    if (file) return std::move(file).value();
    in_.fail("strategy", file.error().message);
    return {};
  }

  LocalStep local(const JsonValue& value) {
    std::vector<std::string_view> names;
    core::for_each_field(kLocalStepFields, [&](const auto& field) { names.push_back(field.name); });
    const JsonObject& object = in_.object(value, "local", names, {});
    LocalStep local;
    core::for_each_field(kLocalStepFields, [&](const auto& field) { read(object, field.name, local.*field.member); });
    return local;
  }
  void read(const JsonObject& object, std::string_view name, int64_t& value) {
    value = integer(object, name, -1, kMostSteps);
  }
  void read(const JsonObject& object, std::string_view name, int32_t& value) {
    value = static_cast<int32_t>(integer(object, name, 0, kMostSlot));
  }
  void read(const JsonObject& object, std::string_view name, double& value) { value = ms(object, name); }
  void read(const JsonObject& object, std::string_view name, bool& value) { value = flag(object, name); }
  void read(const JsonObject& object, std::string_view name, core::Excess& value) {
    const JsonObject& excess =
        in_.object(JsonReader::member(object, name), name, {"kind", "bucket", "value", "allowed"});
    value = {.kind = static_cast<core::Excess::Kind>(integer(excess, "kind", 0, 3)),
             .bucket = static_cast<int32_t>(integer(excess, "bucket", 0, kMostSlot)),
             .value = ms(excess, "value"),
             .allowed = ms(excess, "allowed")};
  }

  Agreement::State agreement(const JsonValue& value) {
    const JsonObject& object = in_.object(
        value, "agreement", {"slot", "epoch", "slots", "pending", "failed_slot", "begun", "last_slot", "last_finite"});
    Agreement::State state;
    const auto slot = [&](const JsonObject& of, std::string_view name) {
      return static_cast<int32_t>(integer(of, name, 0, kMostSlot));
    };
    state.slot = slot(object, "slot");
    state.epoch = integer(object, "epoch", 1, kMostSteps);
    for (const JsonValue& entry : in_.array(JsonReader::member(object, "slots"), "slots")) {
      const JsonArray& pair = in_.array(entry, "slots");
      if (pair.size() != 2) in_.fail("slots", "[slot, hash] is needed");
      if (!in_.ok()) break;
      state.slots[static_cast<int32_t>(in_.integer(pair[0], "slots", 0, kMostSlot))] = in_.hash(pair[1], "slots");
    }
    if (const JsonValue& pending = JsonReader::member(object, "pending"); !pending.is_null()) {
      const JsonObject& of = in_.object(pending, "pending", {"slot", "answered", "hash"});
      state.pending = Agreement::Pending{.slot = slot(of, "slot"), .answered = flag(of, "answered")};
      const JsonValue& prepared = JsonReader::member(of, "hash");
      if (!prepared.is_null()) state.pending->hash = in_.hash(prepared, "pending.hash");
    }
    if (!JsonReader::member(object, "failed_slot").is_null()) state.failed_slot = slot(object, "failed_slot");
    state.begun = flag(object, "begun");
    state.last_slot = slot(object, "last_slot");
    state.last_finite = flag(object, "last_finite");
    return state;
  }

  template <int N>
  ErrorBudget::Window<N> window(const JsonObject& of, std::string_view name) {
    const JsonObject& object = in_.object(JsonReader::member(of, name), name, {"count", "values"});
    ErrorBudget::Window<N> window;
    window.count = static_cast<int>(integer(object, "count", 0, kMostSlot));
    const JsonArray& values = in_.array(JsonReader::member(object, "values"), name);
    if (values.size() != static_cast<size_t>(std::min(window.count, N))) {
      in_.fail(name, fmt::format("{} values of {} are there", values.size(), std::min(window.count, N)));
    }
    for (size_t v = 0; v < values.size() && in_.ok(); ++v) window.values[v] = in_.number(values[v], name, 0, kMostLoss);
    return window;
  }

  ErrorBudget::State errors(const JsonValue& value) {
    const JsonObject& object = in_.object(value, "errors", {"is_committed", "buckets", "committed"});
    ErrorBudget::State state;
    state.is_committed = flag(object, "is_committed");
    for (const JsonValue& entry : in_.array(JsonReader::member(object, "buckets"), "errors.buckets")) {
      const JsonObject& bucket =
          in_.object(entry, "errors.buckets", {"errors", "ratios", "norms", "ratio_levels", "norm_levels"});
      state.buckets.push_back({.errors = window<ErrorBudget::kSteps>(bucket, "errors"),
                               .ratios = window<ErrorBudget::kSteps>(bucket, "ratios"),
                               .norms = window<ErrorBudget::kSteps>(bucket, "norms"),
                               .ratio_levels = window<ErrorBudget::kLevels>(bucket, "ratio_levels"),
                               .norm_levels = window<ErrorBudget::kLevels>(bucket, "norm_levels")});
    }
    for (const JsonValue& entry : in_.array(JsonReader::member(object, "committed"), "errors.committed")) {
      const JsonObject& bucket = in_.object(entry, "errors.committed", {"bucket", "errors"});
      state.committed.push_back({.bucket = in_.hash(JsonReader::member(bucket, "bucket"), "errors.committed.bucket"),
                                 .errors = window<ErrorBudget::kSteps>(bucket, "errors")});
    }
    return state;
  }

  std::map<int32_t, core::Content> contents(const JsonValue& value) {
    std::map<int32_t, core::Content> contents;
    for (const JsonValue& entry : in_.array(value, "contents")) {
      const JsonArray& of = in_.array(entry, "contents");
      if (of.size() != 6) in_.fail("contents", "[tensor, row, of_one, of_all, high_one, high_all] is needed");
      if (!in_.ok()) break;
      const auto share = [&](size_t i) { return in_.number(of[i], "contents", 0, 1); };
      contents[static_cast<int32_t>(in_.integer(of[0], "contents", 0, kMostSlot))] = {
          .row = in_.integer(of[1], "contents", 1, kMostSteps),
          .of_one = share(2),
          .of_all = share(3),
          .high_one = share(4),
          .high_all = share(5)};
    }
    return contents;
  }

  exec::ResidualOwners holders(const JsonValue& value) {
    exec::ResidualOwners holders;
    for (const JsonValue& entry : in_.array(value, "holders")) {
      const JsonArray& range = in_.array(entry, "holders");
      if (range.size() != 4) in_.fail("holders", "[arena, begin, end, compressors] is needed");
      if (!in_.ok()) break;
      const auto arena = static_cast<size_t>(in_.integer(range[0], "holders", 0, core::kMostArenas - 1));
      holders.resize(std::max(holders.size(), arena + 1));
      auto& of_arena = holders[arena];
      const int64_t least = of_arena.empty() ? 0 : of_arena.back().end;
      const int64_t begin = in_.integer(range[1], "holders", least, kMostSteps);
      of_arena.push_back({.begin = begin,
                          .end = in_.integer(range[2], "holders", begin, kMostSteps),
                          .codecs = in_.text(range[3], "holders", kMostCodecBytes)});
    }
    return holders;
  }

  // Checks that this rank can run the strategies that all ranks hold.
  void check(const SavedRank& saved) {
    std::map<int32_t, uint64_t> needed = saved.agreement.slots;
    const auto& pending = saved.agreement.pending;
    if (pending && pending->hash) needed[pending->slot] = *pending->hash;
    if (!saved.agreement.slots.contains(saved.agreement.slot)) in_.fail("agreement", "the slot in force is empty");
    if (needed.size() != saved.strategies.size() || needed.size() > kMostSlots) {
      return in_.fail("strategies", fmt::format("{} are there, {} of at most {} are needed", saved.strategies.size(),
                                                needed.size(), kMostSlots));
    }
    const size_t buckets = in_.ok() ? saved.in_force().strategy.buckets.size() : 0;
    const bool is_committed = saved.errors.is_committed;
    if (saved.errors.buckets.size() != buckets || (is_committed && saved.errors.committed.size() != buckets)) {
      in_.fail("errors", fmt::format("those of the {} buckets in force are needed, found {}", buckets,
                                     saved.errors.buckets.size()));
    }
    const StrategyFile* first = nullptr;
    for (const auto& [slot, file] : saved.strategies) {
      if (first == nullptr) first = &file;
      if (!needed.contains(slot) || needed.at(slot) != core::hash(file.strategy)) {
        in_.fail("strategies", fmt::format("that of slot {} is not the one that the ranks agreed on", slot));
      }
      if (file.tensors != first->tensors || file.model != first->model || file.world_size != first->world_size) {
        in_.fail("strategies", fmt::format("that of slot {} is for another job than that of the first", slot));
      }
    }
  }

  const core::TraitsTable known_;
  JsonReader in_;
};

std::string names(const std::vector<core::CompressorSpec>& codecs) {
  std::string text;
  for (const core::CompressorSpec& codec : codecs) text += (text.empty() ? "" : ",") + core::to_string(codec);
  return text;
}

}  // namespace

std::string to_json(const SavedRank& saved) {
  ordered_json strategies = ordered_json::array();
  for (const auto& [slot, file] : saved.strategies) strategies.push_back({{"slot", slot}, {"strategy", json_of(file)}});
  return ordered_json{{"step", saved.step},
                      {"nonfinite_steps", saved.nonfinite_steps},
                      {"random_step", saved.random_step},
                      {"order_learned", saved.order_learned},
                      {"committed", saved.committed},
                      {"local", json_of(saved.local)},
                      {"agreement", json_of(saved.agreement)},
                      {"errors", json_of(saved.errors)},
                      {"holders", json_of(saved.holders)},
                      {"contents", json_of(saved.contents)},
                      {"strategies", std::move(strategies)}}
      .dump();
}

core::Result<SavedRank> parse_saved_rank(std::string_view text, core::TraitsTable known) {
  const auto root = parse_json(text, kLimits);
  if (!root) return root.error();
  return Parser(known).rank(root.value());
}

std::string to_json(const SavedTuner& saved) {
  std::string journal = journal_header(saved.job, "") + "\n" + journal_line(saved.job.table) + "\n";
  if (saved.job.imported) journal += journal_plan_line(-1, kImportedSlot, saved.job, *saved.job.imported) + "\n";
  ordered_json timed = ordered_json::array();
  for (const auto& [slot, steps] : saved.timed) timed.push_back({slot, steps});
  return ordered_json{{"journal", std::move(journal)},
                      {"ready_count", saved.ready_count},
                      {"committed", saved.committed ? json_of(*saved.committed) : ordered_json()},
                      {"timed", std::move(timed)},
                      {"timed_in_observation", saved.timed_in_observation}}
      .dump();
}

core::Result<SavedTuner> parse_saved_tuner(std::string_view text, core::TraitsTable known) {
  const auto root = parse_json(text, kLimits);
  if (!root) return root.error();
  return Parser(known).tuner(root.value());
}

core::Status same_job(const Job& saved, const Job& now) {
  core::Status status;
  const auto compare = [&](std::string_view what, const auto& was, const auto& is) {
    if (status && was != is) {
      status = core::Error{core::Error::Code::mismatch, fmt::format("{} was {}, now it is {}", what, was, is)};
    }
  };
  compare("the number of ranks", saved.ranks.size, now.ranks.size);
  compare("the number of ranks in a node", saved.ranks.local_size, now.ranks.local_size);
  compare("fidelity", core::to_string(saved.fidelity), core::to_string(now.fidelity));
  compare("compressors", names(saved.codecs), names(now.codecs));
  compare("host_threads", saved.host_threads, now.host_threads);
  compare("memory_budget", saved.memory_bytes, now.memory_bytes);
  compare("forward_overlap", saved.forward_overlap, now.forward_overlap);
  compare("whether gradients are on a device", saved.machine.on_device.gradients, now.machine.on_device.gradients);
  compare("policy", saved.policy, now.policy);
  compare("seed", saved.tuning.seed, now.tuning.seed);
  compare("tuning_budget", saved.tuning.budget_steps, now.tuning.budget_steps);
  compare("tuning_share", saved.tuning.budget_share, now.tuning.budget_share);
  const auto lossy_after = [](const Job& job) {
    return job.tuning.lossy_after ? std::to_string(*job.tuning.lossy_after) : "not set";
  };
  compare("lossy_after", lossy_after(saved), lossy_after(now));
  // Compares everything else that a journal says of a job.
  if (status && journal_header(saved, "") != journal_header(now, "")) {
    status = core::Error{core::Error::Code::mismatch, "options of tuning were others"};
  }
  return status;
}

}  // namespace gradtune::tuner
