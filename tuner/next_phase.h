// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The names of the tuner's phases, for the headers of the phases themselves. phase.h has their contract.
#pragma once

#include <optional>
#include <variant>

namespace gradtune::tuner {

class Observing;
class Searching;
class Racing;
class Confirming;
class Watching;
class Auditing;

using Phase = std::variant<Observing, Searching, Racing, Confirming, Watching, Auditing>;

// The phase that follows; nothing while the present one goes on.
using NextPhase = std::optional<Phase>;

}  // namespace gradtune::tuner
