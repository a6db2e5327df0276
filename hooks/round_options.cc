// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/round_options.h"

#include <sstream>
#include <string>

#include "hooks/refusal.h"

namespace gradtune {

void check(const RoundOptions& rounds) {
  const auto refuse_unless = [](bool is_allowed, const char* name, auto value, const std::string& allowed) {
    if (is_allowed) return;
    std::ostringstream text;
    text << name << " is " << value << "; allowed is " << allowed;
    refuse(text.str());
  };
  refuse_unless(rounds.most >= 1 && rounds.most <= tuner::kMostUpdatesARound, "most", rounds.most,
                "a number of updates from 1 to " + std::to_string(tuner::kMostUpdatesARound));
  refuse_unless(rounds.least >= 1 && rounds.least <= rounds.most, "least", rounds.least,
                "a number of updates from 1 to most");
  refuse_unless(rounds.fragments >= 1 && rounds.fragments <= tuner::kMostFragments, "fragments", rounds.fragments,
                "a number from 1 to " + std::to_string(tuner::kMostFragments));
  if (const int64_t delay = rounds.delay.value_or(0); delay != 0) {
    refuse_unless(delay > 0 && delay < rounds.least, "delay", delay, "0, or a number of updates below least");
    refuse_unless(delay <= rounds.least / rounds.fragments, "delay", delay,
                  "at most " + std::to_string(rounds.least / rounds.fragments) +
                      ", which is least / fragments, as one fragment is exchanged at a time");
  }
  refuse_unless(!rounds.uneven || (rounds.delay == 0 && rounds.fragments == 1), "uneven", "true",
                "false with a delay other than 0 or several fragments, since ranks would differ in the updates beside "
                "an exchange");
  refuse_unless(rounds.dense_steps >= 1, "dense_steps", rounds.dense_steps, "a number of steps above 0");
  refuse_unless(rounds.outer_lr > 0 && rounds.outer_lr <= 1, "outer_lr", rounds.outer_lr,
                "a number above 0 and at most 1");
  refuse_unless(rounds.outer_momentum >= 0 && rounds.outer_momentum < 1, "outer_momentum", rounds.outer_momentum,
                "a number from 0 to below 1");
}

std::vector<SharedThing> describe(const RoundOptions& rounds) {
  const auto text = [](auto value) {
    std::ostringstream stream;
    stream.precision(17);
    stream << value;
    return stream.str();
  };
  return {{"rounds",
           {{"most", text(rounds.most)},
            {"least", text(rounds.least)},
            {"delay", rounds.delay ? text(*rounds.delay) : "chosen"},
            {"fragments", text(rounds.fragments)},
            {"dense_steps", text(rounds.dense_steps)},
            {"outer_lr", text(rounds.outer_lr)},
            {"outer_momentum", text(rounds.outer_momentum)},
            {"uneven", rounds.uneven ? "true" : "false"}}}};
}

tuner::UpdatesARound allowed(const RoundOptions& rounds) {
  return {.least = rounds.least, .most = rounds.most, .delay = rounds.delay, .fragments = rounds.fragments};
}

}  // namespace gradtune
