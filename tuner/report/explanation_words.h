// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// An explanation in words, for readers who know training and networks, and not this program.
#pragma once

#include <string>
#include <vector>

#include "tuner/forecast/explanation.h"

namespace gradtune::tuner {

// "bf16, all-reduce"; "uncompressed, all-reduce"; "int8:256 on host cores, all-to-all, all-gather".
std::string way_of(const core::Option& option);

// Three paragraphs: why each bucket is sent as it is, what limits a step, and what would help most. If the model is
// refuted by the measured steps, the last two say so.
std::vector<std::string> sentences(const Explanation& explanation);

// For a terminal: the headline, the sentences, a table of the buckets, and one of the strategies that ran.
std::string in_words(const Explanation& explanation, const std::string& headline);

}  // namespace gradtune::tuner
