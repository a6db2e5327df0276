// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/cli/cost.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/compress/compressor.h"
#include "tuner/decision_words.h"
#include "tuner/files/cost_file.h"
#include "tuner/files/file_io.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::tuner {
namespace {

std::string samples(const policies::RateQuality& quality) {
  return fmt::format("{:>5} samples, median error {:.0f} %\n", quality.samples, quality.error * 100);
}

std::string as_table(const policies::FittedCost& fitted) {
  std::string text;
  for (size_t c = 0; c < fitted.collectives.size(); ++c) {
    const policies::CollectiveRate& rate = fitted.table.collectives[c];
    text += fmt::format("{:<24} {:>9.1f} us a message, of it {:.1f} with the link free, {:>8.3f} us a KiB; {}",
                        fmt::format("{} ({})", to_string(rate.kind), to_string(rate.level)), rate.message_us,
                        rate.wait_us, rate.byte_us * 1024, samples(fitted.collectives[c]));
  }
  for (size_t c = 0; c < fitted.codecs.size(); ++c) {
    const policies::CodecRate& rate = fitted.table.codecs[c];
    text +=
        fmt::format("{:<24} encode {:.1f} us + {:.3f} ns an element, decode {:.1f} us + {:.3f} ns a byte; {}",
                    fmt::format("{} ({})", to_string(rate.codec), to_string(rate.place)), rate.encode_us,
                    rate.encode_element_us * 1e3, rate.decode_us, rate.decode_byte_us * 1e3, samples(fitted.codecs[c]));
  }
  return text;
}

// Only a search times strategies of all kinds, so the text warns if none was completed.
std::string ended_early(const JournalFile& file) {
  const bool is_decided = std::ranges::any_of(file.decisions, [](const Decision& decision) {
    using What = Decision::What;
    return decision.what == What::commit || decision.what == What::keep_baseline || decision.what == What::race_won;
  });
  if (is_decided || file.stages.empty()) return "";
  return fmt::format(
      "the journal ends after {} steps, {}, before anything was decided: these rates rest on few samples\n",
      file.reports.size(), doing(file.stages.back()));
}

// A rate that misses its own samples by this much says little about others.
std::string unsure(const policies::FittedCost& fitted) {
  constexpr double kMostError = 0.5;
  const auto is_unsure = [](const policies::RateQuality& quality) { return quality.error > kMostError; };
  const auto rates =
      std::ranges::count_if(fitted.collectives, is_unsure) + std::ranges::count_if(fitted.codecs, is_unsure);
  if (rates == 0) return "";
  return fmt::format("{} of these rates miss their own samples by more than {:.0f} %: plans from them are guesses\n",
                     rates, 100 * kMostError);
}

}  // namespace

core::Result<std::string> write_cost(const std::string& journal, const std::string& output) {
  const auto file = read_journal(journal);
  if (!file) return file.error();
  if (file.value().timings.empty()) {
    return core::Error{core::Error::Code::invalid, journal + ": it has no timings; a job writes them while it tunes"};
  }
  const Job& job = file.value().job;
  const policies::FittedCost fitted =
      policies::fit_cost(file.value().runs(), job.table, job.ranks, compress::known_traits(), {}, job.machine);
  if (const core::Status written = write_file_atomically(output, to_json(fitted.table)); !written)
    return written.error();
  return as_table(fitted) + ended_early(file.value()) + unsure(fitted);
}

}  // namespace gradtune::tuner
