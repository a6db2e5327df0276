// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A report as one self-contained page: no network, no other file, no script. It is well-formed XML as well as HTML.
// It is smaller than 1 MB however long the job was, says what it leaves out, and fits a phone as well as a screen.
#pragma once

#include <string>
#include <string_view>

#include "tuner/report/report.h"

namespace gradtune::tuner {

constexpr size_t kMostPageBytes = 1'000'000;

// `source`: the journal's name, as the page shows it.
std::string to_html(const Report& report, std::string_view source);

}  // namespace gradtune::tuner
