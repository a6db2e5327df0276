// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/journal_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/compress/compressor.h"
#include "policies/space/baseline.h"
#include "tuner/files/file_io.h"
#include "tuner/files/file_kind.h"
#include "tuner/files/journal_writer.h"
#include "tuner/files/strategy_file.h"
#include "tuner/files/strict_json.h"
#include "tuner/files/table_json.h"
#include "tuner/paired_timings.h"

namespace gradtune::tuner {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 48, kMostBytes = int64_t{1} << 50;
constexpr double kMostMs = 1e12;
constexpr size_t kMostText = kMostJournalText;

class Parser {
 public:
  core::Result<JournalFile> parse(std::string_view text) {
    const size_t end = text.rfind('\n');
    text = text.substr(0, end == text.npos ? 0 : end);  // the rest is cut off or empty
    for (size_t line = 1; !text.empty() || line == 1; ++line) {
      const size_t length = std::min(text.find('\n'), text.size());
      where_ = fmt::format("line {}", line);
      read(text.substr(0, length), line == 1);
      if (in_.error()) return *in_.error();
      text.remove_prefix(std::min(length + 1, text.size()));
    }
    return std::move(file_);
  }

 private:
  static const JsonValue& get(const JsonObject& object, std::string_view name) {
    return JsonReader::member(object, name);
  }
  static bool has(const JsonObject& object, std::string_view name) { return !get(object, name).is_null(); }
  std::string at(std::string_view name) const { return fmt::format("{}: {}", where_, name); }
  std::string text(const JsonObject& object, std::string_view name) {
    return in_.text(get(object, name), at(name), kMostText);
  }
  int64_t integer(const JsonObject& object, std::string_view name, int64_t least, int64_t most) {
    return in_.integer(get(object, name), at(name), least, most);
  }
  double number(const JsonObject& object, std::string_view name) {
    return in_.number(get(object, name), at(name), 0, kMostMs);
  }
  bool flag(const JsonObject& object, std::string_view name) { return in_.flag(get(object, name), at(name)); }

  void read(std::string_view line, bool is_first) {
    const auto value = parse_json(line, kJobLimits);
    if (!value) return in_.fail(where_, value.error().message);
    if (is_first) return read_header(value.value());
    std::string kind;
    if (const auto* object = std::get_if<JsonObject>(&value.value().value)) kind = text(*object, "kind");
    if (kind == "table") return read_table(value.value());
    if (kind == "step") return read_step(value.value());
    if (kind == "plan") return read_plan(value.value(), line);
    if (kind == "timing") return read_timing(value.value());
    if (kind == "failure") return read_failure(value.value());
    if (kind == "loss") return read_losses(value.value());
    if (kind == "rounds") return read_rounds(value.value());
    if (kind == "decision") return read_decision(value.value(), line);
    in_.fail(at("kind"),
             fmt::format("table, step, plan, decision, timing, failure, rounds or loss is needed, found \"{}\"", kind));
  }

  void read_header(const JsonValue& value) {
    in_.schema(value, at("schema"), kJournalSchema);
    const JsonObject& header = in_.object(value, where_,
                                          {"schema", "world_size", "fidelity", "compressors", "host_threads", "policy",
                                           "model", "network", "tuning", "collectives_at_once"},
                                          {"gradtune", "compressors_from", "ranks_per_node", "memory_budget",
                                           "forward_overlap", "idle_links", "cores", "device", "transport"});
    if (!in_.ok()) return;
    if (has(header, "gradtune")) file_.version = text(header, "gradtune");
    Job& job = file_.job;
    job.ranks.size = static_cast<int>(integer(header, "world_size", 1, 1'000'000));
    if (has(header, "ranks_per_node")) {
      job.ranks.local_size = static_cast<int>(integer(header, "ranks_per_node", 0, job.ranks.size));
    }
    job.fidelity = known(core::parse_fidelity(text(header, "fidelity")), "fidelity");
    for (const JsonValue& entry : in_.array(get(header, "compressors"), at("compressors"))) {
      job.codecs.push_back(
          known(core::parse_compressor(in_.text(entry, at("compressors"), kMostText), traits_), "compressors"));
    }
    if (has(header, "compressors_from")) job.codecs_from = text(header, "compressors_from");
    job.host_threads = static_cast<int>(integer(header, "host_threads", 0, 1 << 16));
    if (has(header, "memory_budget")) {
      job.memory_bytes = integer(header, "memory_budget", 0, std::numeric_limits<int64_t>::max());
    }
    if (has(header, "forward_overlap")) job.forward_overlap = flag(header, "forward_overlap");
    if (has(header, "idle_links")) job.machine.idle_links = read_idle_links(get(header, "idle_links"));
    if (has(header, "cores")) job.machine.cores = read_cores(get(header, "cores"));
    job.machine.cores.host = job.host_threads;
    if (has(header, "device")) job.machine.on_device = read_on_device(get(header, "device"));
    job.machine.collectives_at_once = static_cast<int>(integer(header, "collectives_at_once", 1, 1 << 16));
    job.policy = text(header, "policy");
    model_ = text(header, "model");
    file_.network = text(header, "network");
    if (has(header, "transport")) file_.transport = text(header, "transport");
    const JsonObject& tuning = in_.object(get(header, "tuning"), at("tuning"), {"seed", "budget_steps", "budget_share"},
                                          {"lossy_after", "adaptive", "error_budget", "retune"});
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    job.tuning.seed = static_cast<uint64_t>(integer(tuning, "seed", 0, std::numeric_limits<int64_t>::max()));
    job.tuning.budget_steps = static_cast<int>(integer(tuning, "budget_steps", 0, kMost));
    job.tuning.budget_share = number(tuning, "budget_share");
    if (has(tuning, "lossy_after")) {
      job.tuning.lossy_after = static_cast<int>(integer(tuning, "lossy_after", 0, kMost));
    }
    if (has(tuning, "adaptive") && flag(tuning, "adaptive")) {
      job.tuning.optimizers = core::OptimizerFamily::adaptive;
    }
    job.tuning.has_error_budget = has(tuning, "error_budget") && flag(tuning, "error_budget");
    job.tuning.retune = has(tuning, "retune") && flag(tuning, "retune");  // older programs never did
  }

  policies::IdleLinks read_idle_links(const JsonValue& value) {
    const JsonObject& levels = in_.object(value, at("idle_links"), {"flat", "inter", "intra"});
    const auto read = [&](std::string_view name) {
      const std::string where = fmt::format("{}.{}", at("idle_links"), name);
      const JsonObject& link = in_.object(get(levels, name), where, {"message_us", "wait_us", "byte_us"});
      if (!in_.ok()) return policies::IdleLink();
      const auto read_us = [&](std::string_view what, double most) {
        return in_.number(get(link, what), fmt::format("{}.{}", where, what), 0, most);
      };
      const double message_us = read_us("message_us", kMostMs);
      return policies::IdleLink{message_us, read_us("wait_us", message_us), read_us("byte_us", kMostMs)};
    };
    return {read("flat"), read("inter"), read("intra")};
  }

  policies::OnDevice read_on_device(const JsonValue& value) {
    const JsonObject& device = in_.object(value, at("device"), {"collectives", "kernels"});
    if (!in_.ok()) return {};
    const auto read = [&](std::string_view what) {
      return in_.flag(get(device, what), fmt::format("{}.{}", at("device"), what));
    };
    return {.gradients = true, .collectives = read("collectives"), .kernels = read("kernels")};
  }

  policies::Cores read_cores(const JsonValue& value) {
    const JsonObject& cores = in_.object(value, at("cores"), {"of_rank", "computing"}, {"network"});
    if (!in_.ok()) return {};
    constexpr double kMostCores = 1 << 20;
    const auto read = [&](std::string_view what) {
      return in_.number(get(cores, what), fmt::format("{}.{}", at("cores"), what), 0, kMostCores);
    };
    return {.of_rank = read("of_rank"),
            .computing = read("computing"),
            .network = has(cores, "network") ? read("network") : 0};  // older programs did not measure it
  }

  template <class Value>
  Value known(const core::Result<Value>& value, std::string_view name) {
    if (value) return value.value();
    in_.fail(at(name), value.error().message);
    return {};
  }

  void read_table(const JsonValue& value) {
    const JsonObject& line =
        in_.object(value, where_, {"kind", "forward_us", "update_element_us", "tensors"}, {"uses"});
    if (!in_.ok()) return;
    core::GradientTable table = tuner::read_table(line, where_ + ": ", in_);
    if (!in_.ok()) return;
    if (const std::string model = fmt::format("{:016x}", table.fingerprint()); model != model_) {
      in_.fail(at("tensors"), fmt::format("they are model {}, the journal is of model {}", model, model_));
    }
    file_.job.table = std::move(table);
    const auto baselines = policies::baselines(file_.job.table, file_.job.fidelity);
    for (size_t slot = 0; slot < baselines.size(); ++slot) {
      file_.strategies.insert_or_assign(static_cast<int32_t>(slot), baselines[slot]);
    }
  }

  void read_step(const JsonValue& value) {
    std::vector<std::string_view> needed = {"kind", "stage"}, optional;
    core::for_each_field(core::kStepReportFields,
                         [&](const auto& field) { (field.is_optional ? optional : needed).push_back(field.name); });
    const JsonObject& line = in_.object(value, where_, needed, optional);
    if (file_.job.table.tensors.empty()) in_.fail(where_, "a table is needed before the first step");
    if (!in_.ok()) return;
    file_.stages.push_back(read_stage(line));
    core::StepReport& report = file_.reports.emplace_back();
    core::for_each_field(core::kStepReportFields, [&](const auto& field) {
      if (!field.is_optional || has(line, field.name)) read_field(line, field.name, field.kind, report.*field.member);
    });
  }

  Stage read_stage(const JsonObject& line) {
    const std::string name = text(line, "stage");
    const auto stage = parse_stage(name);
    if (!stage) in_.fail(at("stage"), fmt::format("\"{}\" is not known", name));
    return stage.value_or(Stage());
  }

  void read_field(const JsonObject& line, std::string_view name, core::FieldKind kind, int64_t& value) {
    core::check(kind == core::FieldKind::step, "other numbers have fewer bits");
    value = integer(line, name, -1, kMostSteps);
  }
  void read_field(const JsonObject& line, std::string_view name, core::FieldKind kind, int32_t& value) {
    const bool is_rank = kind == core::FieldKind::rank;
    const int32_t most = is_rank ? file_.job.ranks.size - 1 : std::numeric_limits<int32_t>::max();
    value = static_cast<int32_t>(integer(line, name, is_rank ? -1 : 0, most));
  }
  void read_field(const JsonObject& line, std::string_view name, core::FieldKind, double& value) {
    value = number(line, name);
  }
  void read_field(const JsonObject& line, std::string_view name, core::FieldKind, bool& value) {
    value = flag(line, name);
  }
  void read_field(const JsonObject& line, std::string_view name, core::FieldKind, core::Excess& value) {
    value = read_excess(get(line, name));
  }

  core::Excess read_excess(const JsonValue& value) {
    const JsonObject& excess = in_.object(value, at("excess"), {"what", "bucket", "value", "allowed"});
    if (!in_.ok()) return {};
    const std::string what = text(excess, "what");
    using Kind = core::Excess::Kind;
    auto kind = Kind::error;
    while (kind < Kind::broken && what != to_string(kind)) kind = static_cast<Kind>(static_cast<int>(kind) + 1);
    if (what != to_string(kind)) {
      in_.fail(at("what"), fmt::format("error, residual or broken is needed, found \"{}\"", what));
    }
    return {.kind = kind,
            .bucket = static_cast<int32_t>(integer(excess, "bucket", 0, std::numeric_limits<int32_t>::max())),
            .value = number(excess, "value"),
            .allowed = number(excess, "allowed")};
  }

  // A plan before the first step is the imported strategy.
  void read_plan(const JsonValue& value, std::string_view line) {
    const JsonObject& plan = in_.object(value, where_, {"kind", "step", "slot", "hash", "strategy"});
    const auto slot = static_cast<int32_t>(integer(plan, "slot", 0, std::numeric_limits<int32_t>::max()));
    if (!in_.ok()) return;
    const auto strategy = parse_strategy(get(plan, "strategy"), traits_);
    if (!strategy) return in_.fail(at("strategy"), strategy.error().message);
    const policies::Candidate candidate{strategy.value().strategy, strategy.value().label};
    const auto [place, is_new] = file_.strategies.emplace(slot, candidate);
    if (!is_new && place->second.strategy != candidate.strategy) {
      return in_.fail(at("slot"), fmt::format("{} holds another strategy already", slot));
    }
    if (!file_.reports.empty()) return file_.decided.emplace_back(line), void();
    file_.job.imported = candidate;
  }

  void read_decision(const JsonValue& entry, std::string_view line) {
    const JsonObject& decision = in_.object(entry, where_, {"kind", "step", "stage", "what", "label", "value"});
    const std::string what = text(decision, "what");
    if (in_.ok() && !parse_what(what)) in_.fail(at("what"), fmt::format("\"{}\" is not known", what));
    if (!in_.ok()) return;
    const double value = has(decision, "value") ? in_.number(get(decision, "value"), at("value"), -kMostMs, kMostMs)
                                                : std::numeric_limits<double>::quiet_NaN();
    file_.decisions.push_back({.step = integer(decision, "step", -1, kMostSteps),
                               .stage = read_stage(decision),
                               .what = *parse_what(what),
                               .label = text(decision, "label"),
                               .value = value});
    file_.decided.emplace_back(line);
  }

  void read_losses(const JsonValue& value) {
    const JsonObject& line = in_.object(value, where_, {"kind", "step", "slot", "errors", "residuals"});
    Losses losses{.step = integer(line, "step", 0, kMostSteps),
                  .slot = static_cast<int32_t>(integer(line, "slot", 0, std::numeric_limits<int32_t>::max())),
                  .errors = {},
                  .residuals = {}};
    const auto read = [&](std::string_view name) {
      std::vector<std::optional<double>> values;
      for (const JsonValue& entry : in_.array(get(line, name), at(name))) {
        values.push_back(entry.is_null() ? std::nullopt : std::optional(in_.number(entry, at(name), 0, kMostMs)));
      }
      return values;
    };
    losses.errors = read("errors");
    losses.residuals = read("residuals");
    if (losses.errors.size() != losses.residuals.size()) in_.fail(at("residuals"), "as many as errors are needed");
    file_.losses.push_back(std::move(losses));
  }

  void read_timing(const JsonValue& value) {
    const JsonObject& line = in_.object(value, where_, {"kind", "step", "slot", "ops"});
    const int64_t timed_step = integer(line, "step", -1, kMostSteps);
    const auto slot = static_cast<int32_t>(integer(line, "slot", 0, std::numeric_limits<int32_t>::max()));
    if (!in_.ok()) return;
    if (!file_.strategies.contains(slot)) return in_.fail(at("slot"), "no strategy was put there before");
    const std::vector<core::Bucket>& buckets = file_.strategies.at(slot).strategy.buckets;
    Timing timing{.report = file_.reports.size(), .slot = slot, .ops = {}};
    const auto most_us = kMostMs * 1e3;
    for (const JsonValue& entry : in_.array(get(line, "ops"), at("ops"))) {
      const JsonArray& op = in_.array(entry, at("ops"));
      if (op.size() != 5) return in_.fail(at("ops"), "bucket, step, begin, end and bytes are needed");
      policies::TimedOp step;
      step.bucket = static_cast<int32_t>(in_.integer(op[0], at("ops"), 0, static_cast<int64_t>(buckets.size()) - 1));
      if (!in_.ok()) return;
      const auto steps = buckets[static_cast<size_t>(step.bucket)].option.steps.size();
      step.step =
          static_cast<int32_t>(in_.integer(op[1], at("ops"), policies::kLeastStep, static_cast<int64_t>(steps) - 1));
      step.begin_us = in_.number(op[2], at("ops"), 0, most_us);
      step.end_us = in_.number(op[3], at("ops"), step.begin_us, most_us);
      step.bytes = in_.integer(op[4], at("ops"), -1, kMostBytes);
      if (!in_.ok()) return;
      timing.ops.push_back(step);
    }
    file_.timings.push_back(std::move(timing));
    file_.timed_steps.push_back(timed_step);
  }

  void read_failure(const JsonValue& value) {
    const JsonObject& line = in_.object(value, where_, {"kind", "step", "why"});
    if (!in_.ok()) return;
    file_.failures.push_back(
        {.report = file_.reports.size(), .step = integer(line, "step", 0, kMostSteps), .why = text(line, "why")});
  }

  void read_rounds(const JsonValue& value) {
    const JsonObject& line = in_.object(value, where_, {"kind", "step", "updates", "least", "most"},
                                        {"fragments", "delay", "chooses_delay", "exchange_ms", "update_ms", "work_ms"});
    if (!in_.ok()) return;
    RoundChoice choice{.step = integer(line, "step", 0, kMostSteps)};
    choice.allowed.most = integer(line, "most", 1, kMostUpdatesARound);
    choice.allowed.least = integer(line, "least", 1, choice.allowed.most);
    choice.round.updates = integer(line, "updates", choice.allowed.least, choice.allowed.most);
    if (has(line, "fragments")) choice.round.fragments = integer(line, "fragments", 1, kMostFragments);
    choice.allowed.fragments = choice.round.fragments;
    if (has(line, "delay")) choice.round.delay = integer(line, "delay", 0, choice.round.updates - 1);
    choice.allowed.delay = choice.round.delay;
    if (has(line, "chooses_delay") && flag(line, "chooses_delay")) choice.allowed.delay.reset();
    if (has(line, "exchange_ms") && has(line, "update_ms")) {
      choice.times = {number(line, "exchange_ms"), number(line, "update_ms")};
      if (has(line, "work_ms")) choice.times->work_ms = number(line, "work_ms");
    }
    file_.rounds.push_back(choice);
  }

  const core::TraitsTable traits_ = compress::known_traits();
  JsonReader in_;
  std::string where_, model_;
  JournalFile file_;
};

}  // namespace

std::vector<policies::TimedRun> JournalFile::runs() const {
  std::vector<policies::TimedRun> runs;
  PairedTimings paired(job.machine.idle_links);
  for (size_t t = 0; t < timings.size(); ++t) {
    auto learned = paired.add(timings[t].slot, timed_steps[t], timings[t].ops);
    if (learned) runs.push_back({strategies.at(timings[t].slot).strategy, std::move(*learned)});
  }
  return runs;
}

core::Result<JournalFile> parse_journal(std::string_view text) {
  auto file = Parser().parse(text);
  return file ? std::move(file) : read_as(FileKind::journal, text, file.error());
}

core::Result<JournalFile> read_journal(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  const auto text = read_file(path, kMostBytes);
  if (!text) return text.error();
  auto file = parse_journal(text.value());
  if (!file) return core::Error{file.error().code, path + ": " + file.error().message};
  return file;
}

core::Result<std::unique_ptr<Tuner>> run_again(const JournalFile& file, const AfterStep& after_step) {
  if (file.job.imported) {
    const core::Status fits = core::validate(file.job.imported->strategy, file.job.table);
    if (!fits) return core::Error{fits.error().code, "the imported strategy does not fit: " + fits.error().message};
  }
  auto tuner = make_tuner(file.job);
  if (!tuner) return tuner.error();
  size_t told = 0;
  auto failure = file.failures.begin();
  const auto on_step = [&](const core::StepReport& report) {
    for (; failure != file.failures.end() && failure->report <= told; ++failure) {
      tuner.value()->learn_failure(failure->why);
    }
    ++told;
    const Stage told_in = tuner.value()->stage();
    after_step(*tuner.value(), report, told_in, tuner.value()->on_step(report));
  };
  tell(file.reports, file.timings, on_step,
       [&](const Timing& timing) { tuner.value()->learn_timing(timing.slot, timing.ops); });
  return tuner;
}

core::Result<std::vector<std::string>> decide_again(const JournalFile& file) {
  std::vector<std::string> lines;
  const auto tuner = run_again(file, [&](Tuner& told, const core::StepReport& report, Stage, const Action& answer) {
    for (const Decision& decision : told.take_decisions()) lines.push_back(journal_line(decision));
    if (answer.command.kind == Command::Kind::prepare) {
      lines.push_back(journal_plan_line(report.step + 1, answer.command.slot, file.job, *answer.candidate));
    }
  });
  if (!tuner) return tuner.error();
  return lines;
}

}  // namespace gradtune::tuner
