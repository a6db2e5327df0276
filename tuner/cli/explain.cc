// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/cli/explain.h"

#include <algorithm>
#include <utility>

#include "engine/compress/compressor.h"
#include "tuner/files/cost_file.h"
#include "tuner/files/file_io.h"
#include "tuner/files/file_kind.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/strategy_file.h"
#include "tuner/files/strict_json.h"
#include "tuner/files/trace_file.h"
#include "tuner/report/explanation_words.h"
#include "tuner/report/report.h"
#include "tuner/report/summary.h"

namespace gradtune::tuner {
namespace {

core::Error named(const std::string& file, const core::Error& error) {
  return {error.code, file + ": " + error.message};
}

core::Error invalid(const std::string& file, std::string_view why) {
  return {core::Error::Code::invalid, file + ": " + std::string(why)};
}

core::Result<std::string> explain_journal(const ExplainOptions& options) {
  if (!options.trace.empty() || !options.cost.empty())
    return invalid(options.file, "this is a journal, which has its own times; --trace and --cost are for a strategy");
  const auto journal = read_journal(options.file);
  if (!journal) return journal.error();
  const auto report = make_report(journal.value());
  if (!report) return named(options.file, report.error());
  const core::Result<Explanation>& explanation = report.value().explanation;
  if (!explanation) return invalid(options.file, explanation.error().message);
  return in_words(explanation.value(), story(report.value()));
}

core::Result<std::string> explain_strategy(const ExplainOptions& options, const std::string& text) {
  if (options.trace.empty() || options.cost.empty()) {
    return invalid(
        options.file,
        "a strategy says how gradients are sent, and not how long that takes: --trace FILE and --cost FILE are "
        "needed too; gradtune trace and gradtune cost make them from a journal");
  }
  const core::TraitsTable known = compress::known_traits();
  const auto file = parse_strategy(text, known);
  if (!file) return named(options.file, file.error());
  const auto trace_text = read_file(options.trace, kJobLimits.bytes);
  if (!trace_text) return trace_text.error();
  const auto trace = parse_trace(trace_text.value());
  if (!trace) return named(options.trace, trace.error());
  const auto cost_text = read_file(options.cost, JsonLimits().bytes);
  if (!cost_text) return cost_text.error();
  auto cost = parse_cost(cost_text.value(), known);
  if (!cost) return named(options.cost, cost.error());
  const core::Ranks ranks = cost.value().ranks;
  auto table = fit(file.value(), trace.value().table, ranks.size, file.value().fidelity, known);
  if (!table) return named(options.file, table.error());
  policies::Knowledge knowledge{
      .table = table.value(), .ranks = ranks, .fidelity = file.value().fidelity, .traits = known, .host_threads = 1};
  knowledge.codecs = {{"none"}};
  for (const policies::CodecRate& rate : cost.value().codecs) {
    const core::CompressorTraits* const traits = core::traits_of(rate.codec, known);
    if (traits == nullptr || traits->fidelity > knowledge.fidelity) continue;
    if (std::ranges::find(knowledge.codecs, rate.codec) == knowledge.codecs.end())
      knowledge.codecs.push_back(rate.codec);
  }
  const auto model = policies::StepTimePredictor::of(std::move(table).value(), known, std::move(cost).value());
  const auto explanation = tuner::explain({file.value().strategy, file.value().label}, knowledge, model, false);
  if (!explanation) return invalid(options.cost, "it has no times for a step of the strategy");
  return in_words(*explanation, explanation->label);
}

}  // namespace

core::Result<std::string> explain(const ExplainOptions& options) {
  const auto text = read_file(options.file, kJobLimits.bytes);
  if (!text) return text.error();
  return kind_of(text.value()) == FileKind::strategy ? explain_strategy(options, text.value())
                                                     : explain_journal(options);
}

}  // namespace gradtune::tuner
