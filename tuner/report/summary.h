// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A report in words: the headline, the answers to the questions that people ask first, and a text for a terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tuner/report/report.h"

namespace gradtune::tuner {

struct Answer {
  std::string question, answer;  // a sentence or a few
};

// One sentence: the speed-up, and the strategy behind it.
std::string headline(const Report& report);

// The state of the job and what led to it, in the words that the job itself printed; nothing before its first step.
std::string story(const Report& report);

// A sentence or two: if the job's steps are faster than without gradtune, and by how much.
constexpr std::string_view kDidItHelp = "Did it help?";
std::string did_it_help(const Report& report);

// Answers the questions: is it tuning, is it done, what did it choose, did it help.
std::vector<Answer> answers(const Report& report);

// The job in few words: "2 ranks, 10 tensors, 8,551,818 parameters".
std::string job_line(const Report& report);

// The configuration as names and values.
std::vector<std::pair<std::string, std::string>> configuration(const Report& report);

// For a terminal.
std::string summary(const Report& report);

}  // namespace gradtune::tuner
