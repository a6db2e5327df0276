// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/compress/compressor.h"
#include "tuner/decision_words.h"
#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

using State = Standing::State;

std::string gain_of(const Comparison& claim) {
  std::string text = percent(claim.gain) + " less time a step";
  if (claim.committed_ms > 0 && claim.baseline_ms > 0) {
    text = fmt::format("{} instead of {} a step, {} less", in_ms(claim.committed_ms), in_ms(claim.baseline_ms),
                       percent(claim.gain));
  }
  return std::isfinite(claim.gain_low) ? text + fmt::format(" (at least {})", percent(claim.gain_low)) : text;
}

// The step from which lossy strategies may run.
std::string lossy_start(const Job& job) {
  const int first = job.tuning.lossy_after.value_or(0);
  std::string words = fmt::format("from step {} on", count(first));
  for (const core::CompressorSpec& codec : job.codecs) {
    const int earliest = earliest_step(job.tuning, compress::known_traits(), codec);
    if (earliest <= first) continue;
    words += fmt::format(", with {} from step {} on", core::to_string(codec), count(earliest));
  }
  return words;
}

int64_t last_step(const Report& report) { return report.stages.empty() ? 0 : report.stages.back().end - 1; }

// Steps since the present or last tuning began.
int64_t tuning_steps(const Report& report) {
  int64_t steps = 0;
  for (const StageRun& run : report.stages) {
    if (run.stage == Stage::watch) {
      steps = 0;
    } else {
      steps += run.end - run.begin;
    }
  }
  return steps;
}

std::string is_it_tuning(const Report& report) {
  const Standing& standing = report.standing;
  if (!report.has_begun) return "Not yet: the journal has no step.";
  if (report.job.tuning.budget_steps == 0) return "No. Its tuning budget is 0, so that nothing is tuned.";
  if (!report.is_tuning) {
    if (report.stage == Stage::audit)
      return "No. When the journal ended it was comparing its choice with the baseline again.";
    return fmt::format("No. It watches step times and the link{}.",
                       report.job.tuning.retune ? ", and tunes again when they change" : "; it does not tune again");
  }
  std::string text = fmt::format("Yes, {}at step {} it was {}", standing.since ? "again: " : "",
                                 count(last_step(report)), doing(report.stage));
  if (report.progress && report.stage != Stage::partition) {
    text += fmt::format(" ({:.0f} % of this stage)", 100 * std::clamp(*report.progress, 0.0, 1.0));
  }
  return text + ". Every step of it is an ordinary training step.";
}

std::string is_it_done(const Report& report) {
  const Standing& standing = report.standing;
  if (!report.has_begun) return "No.";
  if (report.job.tuning.budget_steps == 0) return "There is nothing to be done.";
  if (report.is_tuning) {
    return fmt::format("Not yet: {} so far, of at most {}. The journal ends here; a job that still runs goes on.",
                       plural(tuning_steps(report), "step"), count(report.job.tuning.budget_steps));
  }
  std::string text = "Yes";
  if (standing.since) text += fmt::format(", since step {}", count(*standing.since));
  text += ".";
  if (standing.tuning_steps > 0) {
    text += fmt::format(" Tuning took {} and cost {} more than the baseline would have taken in them.",
                        plural(standing.tuning_steps, "step"), in_seconds(standing.tuning_cost_ms));
  }
  return text;
}

std::string sizes_of(const Report& report) {
  if (report.buckets.empty()) return "";
  const auto [least, most] = std::ranges::minmax_element(report.buckets, {}, &BucketRow::bytes);
  if (report.buckets.size() == 1) return fmt::format("1 bucket of {}", in_bytes(least->bytes));
  return fmt::format("{} of {} to {}", plural(static_cast<int64_t>(report.buckets.size()), "bucket"),
                     in_bytes(least->bytes), in_bytes(most->bytes));
}

std::string what_did_it_choose(const Report& report) {
  const Standing& standing = report.standing;
  const std::string buckets = sizes_of(report);
  const std::string tail = buckets.empty() ? "." : fmt::format(": {}.", buckets);
  if (!report.has_begun) return "Nothing yet.";
  switch (standing.state) {
    case State::undecided: return "Nothing is confirmed yet.";
    case State::pinned: return fmt::format("\"{}\", which it was given{}", standing.label, tail);
    case State::committed:
      return fmt::format("{}\"{}\"{}", report.is_tuning ? "Before it tunes again it had chosen " : "", standing.label,
                         tail);
    case State::baseline: return "The baseline.";
    case State::dropped:
      return fmt::format("\"{}\" was dropped, and \"{}\" runs instead{}",
                         standing.former ? standing.former->label : "What was kept", standing.label, tail);
  }
  return "";
}

// Why rounds have no fewer and no more updates.
std::string reason_of(const UpdatesARound& allowed, const ExchangeTimes& times) {
  const UpdatesARound any{.most = kMostUpdatesARound, .delay = allowed.delay, .fragments = allowed.fragments};
  const int64_t enough = shortest_round(times, any).updates;
  const std::string wanted =
      fmt::format("At most {} is wanted, for which {}", percent(kShareOfExchange), plural(enough, "update"));
  const std::string_view are = enough == 1 ? "is" : "are";
  if (enough > allowed.most)
    return fmt::format("{} {} needed, but no more than {} are allowed. ", wanted, are, count(allowed.most));
  if (enough < allowed.least)
    return fmt::format("{} {} enough, but no fewer than {} are allowed. ", wanted, are, count(allowed.least));
  return fmt::format("{} {} enough. ", wanted, are);
}

std::string how_often_does_it_exchange(const Report& report) {
  const RoundChoice& last = report.rounds.runs.back().choice;
  std::string text =
      fmt::format("After every {}, since round {}; {} to {} are allowed. ", plural(last.round.updates, "update"),
                  count(last.step), count(last.allowed.least), count(last.allowed.most));
  if (last.round.fragments > 1) {
    text += fmt::format("The model is exchanged in {} fragments, one after the other. ", count(last.round.fragments));
  }
  if (last.times) {
    const std::string share = percent(last.times->share_of_waiting(last.round));
    std::string beside;
    if (last.round.delay > 0) {
      beside = fmt::format("beside which {} {} on, and ranks wait for ", plural(last.round.delay, "update"),
                           last.round.delay == 1 ? "goes" : "go");
    }
    text += fmt::format("An exchange takes {}, {}{} of the updates{}; an update takes {}. ",
                        in_ms(last.times->exchange_ms), beside.empty() ? "which is " : beside, share,
                        last.round.fragments > 1 ? " of a round, all fragments together" : " between",
                        in_ms(last.times->update_ms));
  }
  if (const auto times = report.rounds.deciding()) text += reason_of(last.allowed, *times);
  return text + "A step of this report is an exchange and one update.";
}

std::string bullet(const Decision& event) {
  return fmt::format("  step {:>6}  {}\n", event.step, shortened(in_words(event), 200));
}

}  // namespace

std::string headline(const Report& report) {
  const Standing& standing = report.standing;
  if (!report.has_begun) return "The job has not begun.";
  const std::string dropped =
      standing.former ? fmt::format("{} was dropped", standing.former->label) : "What was kept was dropped";
  switch (standing.state) {
    case State::undecided: return "The job is being tuned.";
    case State::pinned: return fmt::format("Pinned: {}", standing.label);
    case State::baseline:
      return standing.former ? dropped + ": the baseline is back."
                             : "The baseline stays: nothing was proven to be faster.";
    case State::dropped:
      return fmt::format("{}: {} runs instead.", dropped,
                         standing.label == standing.baseline ? "the baseline" : standing.label);
    case State::committed: {
      const Comparison& claim = standing.comparison;
      std::string less = percent(claim.gain) + " less time a step";
      if (!(claim.committed_ms > 0) || !(claim.baseline_ms > 0)) return less;
      return fmt::format("{}: {} instead of {}", less, in_ms(claim.committed_ms), in_ms(claim.baseline_ms));
    }
  }
  return "";
}

std::string did_it_help(const Report& report) {
  const Standing& standing = report.standing;
  const double baseline_ms = standing.comparison.baseline_ms;
  const std::string baseline =
      baseline_ms > 0 ? fmt::format(" The baseline takes {} a step.", in_ms(baseline_ms)) : std::string();
  if (!report.has_begun) return "Not known yet.";
  switch (standing.state) {
    case State::undecided: return "Not known yet." + baseline;
    case State::pinned: return "Not known: without a tuning budget nothing is compared.";
    case State::committed:
      return fmt::format("Yes: {}, measured on {} of blocks of training steps after the search had ended.",
                         gain_of(standing.comparison), plural(standing.pairs, "fresh pair"));
    case State::baseline:
      return (standing.former ? "Not any more: what was faster was dropped." : "No: nothing is gained.") + baseline;
    case State::dropped: return "Not any more: what was faster was dropped." + baseline;
  }
  return "";
}

std::string story(const Report& report) { return report.has_begun ? in_words(report.standing) : std::string(); }

std::vector<Answer> answers(const Report& report) {
  std::vector<Answer> answers{{"Is it tuning?", is_it_tuning(report)},
                              {"Is it done?", is_it_done(report)},
                              {"What did it choose?", what_did_it_choose(report)},
                              {std::string(kDidItHelp), did_it_help(report)}};
  if (!report.rounds.runs.empty())
    answers.push_back({"How often does it exchange?", how_often_does_it_exchange(report)});
  return answers;
}

std::string job_line(const Report& report) {
  const Job& job = report.job;
  std::string text = plural(job.ranks.size, "rank");
  if (job.ranks.has_levels()) text += fmt::format(", {} on each node", job.ranks.local_size);
  text += fmt::format(", {}, {} parameters, {} of gradients",
                      plural(static_cast<int64_t>(job.table.tensors.size()), "tensor"), count(job.table.numel()),
                      in_bytes(job.table.bytes()));
  if (!report.steps.empty()) text += fmt::format(", {}", plural(static_cast<int64_t>(report.steps.size()), "step"));
  return text;
}

std::vector<std::pair<std::string, std::string>> configuration(const Report& report) {
  const Job& job = report.job;
  std::string codecs;
  for (const core::CompressorSpec& codec : job.codecs) codecs += (codecs.empty() ? "" : ", ") + core::to_string(codec);
  const auto meaning = [&] {
    switch (job.fidelity) {
      case core::Fidelity::exact: return "fp32 sums, nothing is lost";
      case core::Fidelity::half: return "16 bits on the wire, nothing else is lost";
      case core::Fidelity::lossy: return "compressors that lose, with error feedback, are allowed";
    }
    return "";
  };
  std::vector<std::pair<std::string, std::string>> rows = {
      {"ranks", job.ranks.has_levels() ? fmt::format("{}, {} on each node", job.ranks.size, job.ranks.local_size)
                                       : std::to_string(job.ranks.size)},
      {"network", report.network.empty() ? "not told" : report.network},
      {"gradients go over", report.transport.empty() ? "not told" : report.transport},
      {"model", fmt::format("{} tensors, {} parameters, {} of gradients, fingerprint {:016x}",
                            count(static_cast<int64_t>(job.table.tensors.size())), count(job.table.numel()),
                            in_bytes(job.table.bytes()), job.table.fingerprint())},
      {"fidelity", fmt::format("{}: {}", core::to_string(job.fidelity), meaning())},
      {"compressors that may be used",
       (codecs.empty() ? "none" : codecs) + (job.codecs_from.empty() ? "" : " (" + job.codecs_from + ")")},
      {"policy", job.policy},
      {"started from", job.imported ? job.imported->label : "no strategy file"},
      {"tuning budget", job.tuning.budget_steps == 0
                            ? std::string("0 steps: nothing is tuned")
                            : fmt::format("{} and {} of the time", plural(job.tuning.budget_steps, "step"),
                                          percent(job.tuning.budget_share))},
      {"lossy strategies", lossy_start(job)},
      {"tunes again after a change", job.tuning.retune ? "yes" : "no"},
      {"seed", std::to_string(job.tuning.seed)},
      {"host threads for compressors", std::to_string(job.host_threads)},
      {"memory budget", job.memory_bytes == INT64_MAX ? "none" : in_bytes(job.memory_bytes)},
      {"collectives at once", std::to_string(job.machine.collectives_at_once)},
      {"gradients are on", !job.machine.on_device.gradients
                               ? std::string("the host")
                               : fmt::format("a device{}{}", job.machine.on_device.kernels ? "" : " without kernels",
                                             job.machine.on_device.collectives ? ", which communicates itself" : "")},
      {"cores of a rank", job.machine.cores.of_rank > 0
                              ? fmt::format("{}, of which {} compute, and {} while bytes pass the network",
                                            number(job.machine.cores.of_rank), number(job.machine.cores.computing),
                                            number(job.machine.cores.network))
                              : std::string("not known")}};
  for (const auto& [name, link] :
       {std::pair("all ranks", job.machine.idle_links.flat), std::pair("nodes", job.machine.idle_links.inter),
        std::pair("ranks of a node", job.machine.idle_links.intra)}) {
    if (!(link.message_us > 0)) continue;
    rows.emplace_back(fmt::format("idle link between {}", name),
                      fmt::format("a message takes {}{}", in_ms(link.message_us * 1e-3),
                                  link.byte_us > 0 ? fmt::format(", {} MB/s", number(1 / link.byte_us)) : ""));
  }
  return rows;
}

std::string summary(const Report& report) {
  std::string text = headline(report) + "\n" + job_line(report) + "\n";
  if (const std::string told = story(report); !told.empty()) text += told + "\n";
  text += "\n";
  for (const auto& [question, answer] : answers(report)) text += fmt::format("{:<20} {}\n", question, answer);
  if (!report.trials.empty()) {
    text += "\nMeasured candidates, ms a step\n";
    std::vector<Trial> trials = report.trials;
    std::ranges::stable_sort(trials, {}, [](const Trial& trial) { return trial.measured_ms.value_or(INFINITY); });
    constexpr size_t kMost = 12;
    for (size_t t = 0; t < std::min(trials.size(), kMost); ++t) {
      const Trial& trial = trials[t];
      const std::string predicted =
          trial.predicted_ms ? fmt::format(", predicted {}", number(*trial.predicted_ms)) : std::string();
      text += fmt::format("  {:>10}  {}{}\n", trial.measured_ms ? number(*trial.measured_ms) : "-",
                          shortened(trial.label, 120), predicted);
    }
    if (trials.size() > kMost) text += fmt::format("  and {} slower ones\n", trials.size() - kMost);
  }
  if (!report.events.empty()) {
    text += "\nDecisions\n";
    constexpr size_t kMost = 20;
    const size_t left_out = report.events.size() > kMost ? report.events.size() - kMost : 0;
    if (left_out > 0) text += fmt::format("  ({} earlier ones are left out)\n", left_out);
    for (size_t e = left_out; e < report.events.size(); ++e) text += bullet(report.events[e]);
  }
  for (const std::string& what : report.lacks) text += "\n" + what + "\n";
  return text;
}

}  // namespace gradtune::tuner
