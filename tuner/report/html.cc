// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <set>

#include "tuner/decision_words.h"
#include "tuner/digits.h"
#include "tuner/report/charts.h"
#include "tuner/report/explanation_words.h"
#include "tuner/report/markup.h"
#include "tuner/report/page_style.h"
#include "tuner/report/summary.h"
#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

constexpr size_t kMostTrials = 200, kMostRaces = 4, kMostTests = 4, kMostAudits = 100, kMostEvents = 300;
constexpr size_t kMostBuckets = 1000, kMostKinds = 40, kMostGuard = 100;
constexpr size_t kLabelBytes = 160, kNameBytes = 60;

// A name that came from the job.
std::string name(std::string_view text, size_t most = kLabelBytes) {
  return "<bdi>" + escape(shortened(text, most)) + "</bdi>";
}

// The same picture for a phone and for a screen; the style shows one of them.
std::string picture(const std::function<std::string(double)>& chart) {
  const std::string narrow = chart(340), wide = chart(940);
  if (narrow.empty()) return "";
  return fmt::format("<div class=\"narrow\">{}</div><div class=\"wide\">{}</div>\n", narrow, wide);
}

std::string section(std::string_view id, std::string_view title, std::string_view what, std::string_view content) {
  return fmt::format("<section id=\"{}\"><h2>{}</h2><p class=\"what\">{}</p>\n{}</section>\n", id, title, what,
                     content);
}

std::string note(std::string_view text) { return fmt::format("<p class=\"note\">{}</p>\n", text); }

// The last entries of a list, and a note with the number of entries left out.
template <typename Value>
std::vector<Value> last_of(const std::vector<Value>& all, size_t most, std::string_view what, std::string& text) {
  if (all.size() <= most) return all;
  text += note(fmt::format("{} earlier {} are left out here.", count(static_cast<int64_t>(all.size() - most)), what));
  return {all.end() - static_cast<std::ptrdiff_t>(most), all.end()};
}

std::string swatch(std::string_view shape, std::string_view text) {
  return fmt::format("<li><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\">{}</svg>{}</li>", shape, text);
}
std::string square(std::string_view style, std::string_view text) {
  return swatch(fmt::format("<rect x=\"1\" y=\"1\" width=\"12\" height=\"12\" class=\"{}\"/>", style), text);
}
std::string dot(std::string_view style, std::string_view text) {
  return swatch(fmt::format("<circle cx=\"7\" cy=\"7\" r=\"5\" class=\"{}\"/>", style), text);
}
std::string legend(std::string_view items) { return fmt::format("<ul class=\"legend\">{}</ul>\n", items); }

// The kinds of bars in pictures of steps.
std::string legend_of(const std::vector<std::vector<Bar>>& pictures) {
  std::set<std::string> kinds;
  for (const std::vector<Bar>& bars : pictures) {
    for (const Bar& bar : bars) kinds.insert(bar.lane == Lane::link ? "collective" : bar.what);
  }
  std::string items;
  const auto add = [&](const std::string& kind, std::string_view style, std::string_view words) {
    if (kinds.contains(kind)) items += square(style, words);
  };
  add("computation", "op-compute", "computation");
  add("backward", "op-compute", "backward and forward");
  add("update", "op-update", "update");
  add("encode", "op-encode", "encode");
  add("collective", "op-collective", "collective on the link");
  add("decode", "op-decode", "decode");
  add("scale", "op-pass", "scale or copy");
  return legend(items);
}

// Sentences about steps that are missing, or far from the claimed figures.
std::string warnings_of(const std::vector<ComparedStep>& compared) {
  constexpr double kFar = 0.2;
  std::string text;
  for (const ComparedStep& each : compared) {
    if (!each.measured) {
      text += fmt::format("<p>There is no picture of {}: the journal has no times of its operations.</p>\n",
                          name(each.label));
      continue;
    }
    const double length_ms = each.measured->length_us * 1e-3, off_ms = length_ms - each.claimed_ms;
    if (!(each.claimed_ms > 0) || std::abs(off_ms) <= kFar * each.claimed_ms) continue;
    text += fmt::format(
        "<p>The picture of {} is of another time than its figure: machines or links were {} in step {}, which took {}."
        "</p>\n",
        name(each.label), off_ms < 0 ? "faster" : "slower", count(each.measured->step), in_ms(length_ms));
  }
  return text;
}

std::string figures_of(const std::vector<ComparedStep>& compared) {
  std::string text;
  for (const ComparedStep& each : compared) {
    if (!(each.claimed_ms > 0)) continue;
    const bool is_after = each.role == ComparedStep::Role::after;
    const std::string_view title = each.role == ComparedStep::Role::before ? "Before" : is_after ? "After" : "Baseline";
    text += fmt::format("<div><dt>{}</dt><dd class=\"figure{}\">{} a step</dd><dd>{}</dd></div>", title,
                        is_after ? " chosen" : "", in_ms(each.claimed_ms), name(each.label));
  }
  return text.empty() ? text : "<dl class=\"answers\">" + text + "</dl>\n";
}

// The answer to the question that matters most, with its figures, and a picture of them.
std::string verdict_part(const Report& report) {
  std::string text = fmt::format("<p class=\"verdict\">{}</p>\n", name(did_it_help(report), 1000));
  text += figures_of(report.pictures.compared);
  text += warnings_of(report.pictures.compared);
  std::vector<std::vector<Bar>> pictures;
  bool has_claim = false;
  for (const ComparedStep& each : report.pictures.compared) {
    if (!each.measured) continue;
    pictures.push_back(each.measured->bars);
    has_claim = has_claim || each.claimed_ms > 0;
  }
  if (pictures.empty()) return text;
  text += picture([&](double width) { return comparison_chart(report, width); }) + legend_of(pictures);
  return text + note(fmt::format(
                    "Measured on rank 0. Numbers are buckets.{} A step is drawn from the end of one exchange to the "
                    "end of the next. Journals do not hold when rank 0 computed, so computation is drawn as early as "
                    "it could be. <code>gradtune report JOURNAL --chrome step.json</code> writes the same for "
                    "Perfetto.",
                    has_claim ? " Dashed lines are the figures above." : ""));
}

std::string answers_part(const Report& report) {
  std::string text;
  if (const std::string told = story(report); !told.empty()) text += fmt::format("<p>{}</p>\n", name(told, 1000));
  text += "<dl class=\"answers\">";
  for (const auto& [question, answer] : answers(report)) {
    if (question == kDidItHelp) continue;  // it has been answered above
    text += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", escape(question), name(answer, 600));
  }
  return text + "</dl>\n";
}

// The report until a little after the first decision, if that is a small part of all steps and would be hard to see.
std::optional<Report> first_tuning(const Report& report) {
  const auto watch = std::ranges::find(report.stages, Stage::watch, &StageRun::stage);
  if (watch == report.stages.end() || report.steps.empty()) return {};
  const int64_t end = watch->begin + std::max<int64_t>(20, watch->begin / 5);
  constexpr int64_t kMuchLonger = 3;
  if (report.steps.back().step < kMuchLonger * end) return {};
  Report first = report;
  std::erase_if(first.steps, [&](const ReportStep& step) { return step.step >= end; });
  std::erase_if(first.events, [&](const Decision& event) { return event.step >= end; });
  std::erase_if(first.stages, [&](const StageRun& run) { return run.begin >= end; });
  if (first.steps.empty()) return {};
  const auto& since = report.standing.since;
  if (!since || *since >= end) first.standing.comparison = {};  // its figures belong to a later tuning
  for (StageRun& run : first.stages) run.end = std::min(run.end, end);
  return first;
}

std::string steps_part(const Report& report) {
  if (report.steps.empty()) return note("The journal has no step that took time.");
  std::string text;
  if (const auto first = first_tuning(report)) {
    text += fmt::format("<h3>Until the first decision, steps {} to {}</h3>\n", count(first->steps.front().step),
                        count(first->steps.back().step));
    text += picture([&](double width) { return steps_chart(*first, width); });
    text += "<h3>All steps</h3>\n";
  }
  text += picture([&](double width) { return steps_chart(report, width); });
  std::set<std::string> roles;
  std::set<int32_t> slots;
  for (const ReportStep& step : report.steps) slots.insert(step.slot);
  for (const int32_t slot : slots) roles.insert(role_of(report, slot));
  std::string items;
  if (roles.contains("baseline")) items += dot("fill baseline", "baseline");
  if (roles.contains("candidate")) items += dot("fill candidate", "other candidates");
  if (roles.contains("former")) items += dot("fill former", "what was chosen before");
  if (roles.contains("chosen")) items += dot("fill chosen", "what was chosen");
  text += legend(items);
  text += note(
      "A dot is a step: the time between the same point of two steps, over all ranks. Pale dots are steps with an "
      "evaluation, a checkpoint or a preparation in them, which count for nothing. Dots at the upper edge took longer "
      "than the axis shows. Dashed lines are the figures of the decision. The band above names what the tuner did.");
  const std::vector<size_t> marked = marked_events(report);
  if (marked.empty()) return text;
  std::vector<Cells> rows;
  for (const size_t number : marked) {
    const Decision& event = report.events[number];
    rows.push_back({std::to_string(number + 1), count(event.step), name(in_words(event), 400)});
  }
  return text + table({"#no.", "#step", "decision"}, rows);
}

std::string rounds_part(const Report& report) {
  const RoundHistory& history = report.rounds;
  std::string text;
  if (const std::string chart = picture([&](double width) { return rounds_chart(report, width); }); !chart.empty()) {
    text += "<h3>Each round</h3>\n" + chart;
    text += note(
        "A dot is a round: the time for which the slowest rank waits for the exchange, as a share of the updates of "
        "that round. Where updates go on beside an exchange, that time follows from the exchange and the delay. Its "
        "colour is that of the strategy, as in the picture of steps. Vertical lines are changes of the number of "
        "updates or of the delay.");
  }
  if (const std::string chart = picture([&](double width) { return round_length_chart(report, width); });
      !chart.empty()) {
    text += "<h3>Why so many updates</h3>\n" + chart;
    text += legend(square("fill chosen", "what was chosen, with the share that was predicted") +
                   dot("block candidate", "what such rounds measured, median"));
  }
  std::vector<Cells> rows;
  for (const RoundsRun& run : last_of(history.runs, kMostEvents, "changes", text)) {
    const auto& [choice, rounds, times, share] = run;
    const auto cell = [](const std::optional<ExchangeTimes>& of, double ExchangeTimes::*ms) {
      return of ? number((*of).*ms) : std::string("-");
    };
    const std::string predicted = choice.times ? percent(choice.times->share_of_waiting(choice.round)) : "-";
    rows.push_back({count(choice.step), count(choice.round.updates), count(choice.round.delay),
                    cell(choice.times, &ExchangeTimes::exchange_ms), cell(choice.times, &ExchangeTimes::update_ms),
                    predicted, count(rounds), cell(times, &ExchangeTimes::exchange_ms),
                    cell(times, &ExchangeTimes::work_ms), cell(times, &ExchangeTimes::update_ms),
                    share ? percent(*share) : "-"});
  }
  return text + table({"#since round", "#updates", "#delay", "#exchange ms before", "#update ms before",
                       "#predicted share", "#rounds", "#exchange ms", "#own work ms", "#update ms", "#measured share"},
                      rows);
}

std::string trials_part(const Report& report) {
  std::string text;
  std::vector<Trial> trials = last_of(report.trials, kMostTrials, "candidates", text);
  if (trials.empty()) return note("No candidate was measured.");
  double most = 0;
  for (const Trial& trial : trials) most = std::max(most, trial.measured_ms.value_or(0));
  std::ranges::stable_sort(trials, {}, [](const Trial& trial) { return trial.measured_ms.value_or(INFINITY); });
  const bool has_predicted = std::ranges::any_of(trials, [](const Trial& t) { return t.predicted_ms.has_value(); });
  std::vector<Cells> rows;
  for (const Trial& trial : trials) {
    const bool is_chosen = role_of_label(report, trial.label) == "chosen";
    const double share = trial.measured_ms ? 100 * *trial.measured_ms / most : 0;
    const std::string gauge = fmt::format("<div class=\"gauge{}\" style=\"width:{:.0f}%\"></div>",
                                          is_chosen ? " chosen" : "", std::clamp(share, 0.0, 100.0));
    rows.push_back({name(trial.label) + gauge, trial.measured_ms ? number(*trial.measured_ms) : "-"});
    if (has_predicted) rows.back().push_back(trial.predicted_ms ? number(*trial.predicted_ms) : "-");
    rows.back().push_back(count(trial.step));
  }
  if (!has_predicted) return text + table({"candidate", "#ms a step", "#at step"}, rows);
  return text + table({"candidate", "#ms a step", "#predicted", "#at step"}, rows);
}

std::string races_part(const Report& report) {
  std::string text;
  const auto races = last_of(report.races, kMostRaces, "races", text);
  for (const RaceRecord& race : races) {
    text += fmt::format("<h3>Race, steps {} to {}</h3>\n", count(race.begin), count(race.end - 1));
    text += picture([&](double width) { return race_chart(report, race, width); });
  }
  if (races.empty()) return text;
  text += legend(dot("block candidate", "a block of steps") +
                 swatch("<path d=\"M7 1l6 6l-6 6l-6 -6z\" class=\"fill candidate\"/>", "mean of its blocks") +
                 square("fill baseline", "baseline"));
  return text + note(
                    "Lines are 95 % intervals (Student's t, with the spread of all arms). After each round the worse "
                    "half is out. Winners of races look better than they are, so nothing here is the gain that is "
                    "claimed.");
}

std::string verdict_of(PairTest::Verdict verdict) {
  switch (verdict) {
    case PairTest::Verdict::open: return "not finished";
    case PairTest::Verdict::committed: return "confirmed, and committed";
    case PairTest::Verdict::not_confirmed: return "not confirmed";
    case PairTest::Verdict::dropped: return "dropped";
    case PairTest::Verdict::kept: return "kept";
  }
  return "";
}

// The number of planned pairs; for an unfinished test also the number of pairs so far.
std::string pairs_of(const PairTest& test) {
  std::string wanted = plural(test.wanted, "pair");
  if (test.verdict != PairTest::Verdict::open) return wanted;
  return fmt::format("{} of {}", test.pairs_ms.size(), wanted);
}

std::string tests_part(const Report& report) {
  std::string text;
  std::vector<PairTest> confirmations, audits;
  for (const PairTest& test : report.tests) {
    (test.kind == PairTest::Kind::audit ? audits : confirmations).push_back(test);
  }
  if (confirmations.empty()) text += note("No winner came as far as a confirmation.");
  for (const PairTest& test : last_of(confirmations, kMostTests, "confirmations", text)) {
    text += fmt::format("<h3>{}</h3>\n<p>Steps {} to {}, {}: {}.", name(test.label), count(test.begin), count(test.end),
                        pairs_of(test), verdict_of(test.verdict));
    if (test.gain) text += fmt::format(" Gain {}", percent(*test.gain));
    if (test.gain_low)
      text += fmt::format(", and with the confidence that decides at least {}", percent(*test.gain_low));
    if (test.gain) text += ".";
    text += "</p>\n";
    if (test.pairs_ms.empty()) continue;
    text += picture([&](double width) { return pairs_chart(report, test, width); });
    text += legend(dot("fill chosen", "the candidate") + square("fill baseline", "baseline"));
  }
  if (audits.empty()) return text;
  text += "<h3>Compared again later</h3>\n";
  std::vector<Cells> rows;
  for (const PairTest& test : last_of(audits, kMostAudits, "comparisons", text)) {
    rows.push_back(
        {count(test.end), name(test.label), test.gain ? percent(*test.gain) : "-", verdict_of(test.verdict)});
  }
  return text + table({"#step", "strategy", "#gain", "result"}, rows);
}

std::string buckets_part(const Report& report) {
  if (report.buckets.empty()) return note("No buckets are known.");
  std::string text = picture([&](double width) { return bucket_chart(report, width); });
  std::vector<Cells> kinds, rows;
  std::set<int> seen;
  for (const BucketRow& bucket : report.buckets) {
    if (seen.size() == kMostKinds || !seen.insert(bucket.kind).second) continue;
    int64_t of_kind = 0, bytes = 0;
    for (const BucketRow& other : report.buckets) {
      if (other.kind != bucket.kind) continue;
      ++of_kind;
      bytes += other.bytes;
    }
    const std::string mark = fmt::format(
        "<svg viewBox=\"0 0 14 14\" aria-hidden=\"true\" class=\"swatch\"><rect "
        "width=\"14\" height=\"14\" class=\"fill kind{}\"/></svg>",
        bucket.kind % 7);
    kinds.push_back(
        {mark + letter(bucket.kind), "<code>" + name(bucket.option, 300) + "</code>", count(of_kind), in_bytes(bytes)});
  }
  text += table({"option", "program: codecs, then steps", "#buckets", "#size"}, kinds);
  for (size_t b = 0; b < std::min(report.buckets.size(), kMostBuckets); ++b) {
    const BucketRow& bucket = report.buckets[b];
    std::string tensors = name(bucket.first, kNameBytes);
    if (bucket.slices > 1) tensors += " to " + name(bucket.last, kNameBytes);
    std::string places;
    for (size_t p = 0; p < std::min<size_t>(bucket.places.size(), 4); ++p) {
      places += (p == 0 ? "" : ", ") + std::to_string(bucket.places[p]);
    }
    rows.push_back({std::to_string(b), tensors, in_bytes(bucket.bytes), letter(bucket.kind),
                    bucket.uses_host ? "host" : "device", places,
                    bucket.due == core::Due::forward ? "forward" : "backward", number(bucket.ready_us * 1e-3)});
  }
  std::string left_out;
  if (report.buckets.size() > kMostBuckets) {
    left_out = note(fmt::format("{} further buckets are left out; the strategy file has all.",
                                count(static_cast<int64_t>(report.buckets.size() - kMostBuckets))));
  }
  return text +
         fmt::format("<details><summary>All {} with their tensors</summary>{}{}</details>\n",
                     plural(static_cast<int64_t>(report.buckets.size()), "bucket"),
                     table({"#no.", "tensors", "#size", "option", "codec on", "#order", "due at", "#ready ms"}, rows),
                     left_out);
}

std::string picture_part(const Report& report) {
  const StepPicture& step = report.pictures.chosen;
  std::string text = picture([&](double width) { return step_chart(report, width); });
  for (const std::string& what : step.lacks) text += note(escape(what));
  if (step.measured.empty() && step.predicted.empty()) return text;
  text += legend_of({step.measured, step.predicted});
  const auto end_of = [](const std::vector<Bar>& bars) {
    double end_us = 0;
    for (const Bar& bar : bars) {
      if (bar.bucket >= 0) end_us = std::max(end_us, bar.end_us);
    }
    return in_ms(end_us * 1e-3);
  };
  if (!step.measured.empty() && !step.predicted.empty()) {
    text += note(fmt::format("The last operation ends after {}; the model expects {}.", end_of(step.measured),
                             end_of(step.predicted)));
  }
  return text + note(
                    "Numbers are buckets. The model is fitted to what operations took in the job's own steps, so this "
                    "shows how well it explains them. Journals do not tell when backward ran: the measured step is "
                    "placed so that its first operation begins with the predicted one.");
}

std::string why_part(const Report& report) {
  if (!report.explanation) return note(fmt::format("Not known: {}.", name(report.explanation.error().message, 600)));
  std::string text;
  for (const std::string& sentence : sentences(report.explanation.value()))
    text += fmt::format("<p>{}</p>\n", name(sentence, 1000));
  return text + note(
                    "This is a forecast from the times of the job's own operations. The command gradtune explain has a "
                    "table.");
}

std::string events_part(const Report& report) {
  if (report.events.empty()) return note("Nothing was decided.");
  std::string text;
  std::vector<Cells> rows;
  for (const Decision& event : last_of(report.events, kMostEvents, "decisions", text)) {
    rows.push_back({count(event.step), std::string(to_string(event.stage)), name(in_words(event), 400)});
  }
  return text + table({"#step", "stage", "what"}, rows);
}

bool is_change(Decision::What what) {
  using What = Decision::What;
  switch (what) {
    case What::drift:
    case What::link:
    case What::density:
    case What::more_may_run:
    case What::straggler:
    case What::audit:
    case What::drop_committed:
    case What::look_again:
    case What::relation_changed:
    case What::ranking_holds:
    case What::ranking_changed:
    case What::over_error_budget:
    case What::residual_runs_away:
    case What::broken:
    case What::not_finite:
    case What::give_up:
    case What::warn:
    case What::run_instead:
    case What::repair: return true;
    default: return false;
  }
}

std::string changes_part(const Report& report) {
  Report changes;
  std::ranges::copy_if(report.events, std::back_inserter(changes.events),
                       [](const Decision& event) { return is_change(event.what); });
  if (changes.events.empty()) return note("Nothing moved, or nothing was watched yet.");
  return events_part(changes);
}

std::string guard_part(const Report& report) {
  const auto lossy = std::ranges::count_if(report.buckets, &BucketRow::is_lossy);
  std::string text;
  if (report.guard.empty()) {
    text += fmt::format("<p>{} of what was chosen {} more than 16 bits do. No bucket was over its budget.</p>\n",
                        plural(lossy, "bucket"), lossy == 1 ? "loses" : "lose");
  } else {
    std::vector<Cells> rows;
    for (const GuardCase& guard : last_of(report.guard, kMostGuard, "cases", text)) {
      std::string codecs;
      for (const std::string& codec : guard.codecs) codecs += (codecs.empty() ? "" : ", ") + codec;
      const auto [value, allowed] = told_apart(guard.excess.value, guard.excess.allowed);
      const std::string banned =
          codecs.empty() ? "this strategy" : fmt::format("this strategy; {} for these tensors", name(codecs));
      rows.push_back({count(guard.step), name(guard.label), std::to_string(guard.excess.bucket),
                      name(guard.tensors, 2 * kNameBytes),
                      fmt::format("{} {}, allowed {}", to_string(guard.excess.kind), value, allowed), banned});
    }
    text +=
        table({"#step", "strategy", "#bucket", "tensors", "what was found", "banned for the rest of the job"}, rows);
  }
  return text + note(
                    "Error: what compressing a bucket loses in one step, relative to what is compressed. Residual: "
                    "what was lost and is still owed, relative to the gradient. Broken: what was sent and kept is not "
                    "what was given, by such a share. Shown is what was beyond the limit, of the worst rank.");
}

std::string configuration_part(const Report& report) {
  std::vector<Cells> rows;
  for (const auto& [what, value] : configuration(report)) rows.push_back({escape(what), name(value, 600)});
  return table({"setting", "value"}, rows);
}

}  // namespace

std::string to_html(const Report& report, std::string_view source) {
  const std::string title = escape(headline(report));
  std::string body = fmt::format("<header><h1>{}</h1><p class=\"what\">{}; {}</p></header>\n", title,
                                 escape(job_line(report)), name(source));
  body += fmt::format("<section id=\"verdict\"><h2>{}</h2>\n{}</section>\n", kDidItHelp, verdict_part(report));
  body += answers_part(report);
  body += section("steps", "Step times", "How long each training step took, and what the tuner was doing.",
                  steps_part(report));
  if (!report.rounds.runs.empty()) {
    body += section("rounds", "Rounds",
                    "How often the ranks exchange what their updates changed, and what an exchange takes beside the "
                    "updates between.",
                    rounds_part(report));
  }
  body +=
      section("trials", "What was measured",
              "Candidates that the search ran for a few training steps each, the fastest first.", trials_part(report));
  if (!report.races.empty()) {
    body += section("race", "The race",
                    "The best candidates and the baseline took turns, in blocks of a few steps each, so that whatever "
                    "slows the machines down for a while hits all of them.",
                    races_part(report));
  }
  body += section("proof", "The proof",
                  "After the search the winner runs against the baseline again, in pairs of blocks in random order. "
                  "Only this decides, and only this gain is claimed. The baseline is what a job has without gradtune.",
                  tests_part(report));
  body += section("buckets", "Buckets",
                  "How gradients travel: tensors are merged and split into buckets, and each bucket has a program that "
                  "takes it from the gradient of this rank to the average of all ranks.",
                  buckets_part(report));
  body += section("why", "Why so", "Why each bucket is sent as it is, what limits a step, and what would help most.",
                  why_part(report));
  body += section("step", "One step",
                  "When operations ran in a step under what was chosen, and what the model makes of it.",
                  picture_part(report));
  body += section("changes", "What changed", "What was noticed while the decision stood, and what followed.",
                  changes_part(report));
  body += section("guard", "Error guard", "Whether compression lost more than it did when the strategy was chosen.",
                  guard_part(report));
  body += section("job", "The job", "What gradtune was told.", configuration_part(report));
  if (!report.lacks.empty()) {
    std::string text;
    for (const std::string& what : report.lacks) text += "<p>" + name(what, 600) + "</p>\n";
    body += section("lacks", "What this page lacks", "What the journal does not hold.", text);
  }
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>gradtune: {}</title>"
      "<style>{}</style></head>\n<body>\n{}</body></html>\n",
      title, page_style(), body);
}

}  // namespace gradtune::tuner
