// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What was decided, as a sentence for people: of the lines on standard error and of reports. Leaves open who is told of
// which decision.
#pragma once

#include <string>
#include <string_view>

#include "tuner/decision.h"

namespace gradtune::tuner {

// Without a full stop and without the step: "steps take 25 % longer than before".
std::string in_words(const Decision& decision);

// What the tuner does in that stage: "racing the best".
std::string_view doing(Stage stage);

}  // namespace gradtune::tuner
