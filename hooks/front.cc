// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/front.h"

#include <unistd.h>

#include <cstdio>

namespace gradtune {

void Console::say(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

bool Console::is_terminal() const { return ::isatty(STDERR_FILENO) == 1; }

void Console::warn(const std::string& sentence) { say("gradtune: warning: " + sentence + "\n"); }

}  // namespace gradtune
