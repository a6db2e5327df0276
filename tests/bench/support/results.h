// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The file that a benchmark writes: its rows, and the run that produced them. tests/bench/README.md describes the
// format; save() of support/shaped.py writes the same for benchmarks in Python.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace gradtune::bench {

struct Row {
  std::string name = {};
  double value = 0;
  std::string unit = {};
  double anchor = 0;                  // the value to compare with
  double ratio = 0;                   // value / anchor
  std::array<double, 2> spread = {};  // of the ratio, unless the benchmark says otherwise
  std::optional<double> goal = {};
  std::optional<bool> met = {};
  std::optional<double> ms = {};  // of one call, if the value is a rate
};

// The body of main(): runs the benchmark, and prints an exception on standard error, with status 1.
int run_benchmark(int argc, char** argv, int (*benchmark)(int argc, char** argv));

// Takes main's arguments, the last two of which are BUILD_FOLDER OUTPUT.json. Numbers have four significant digits.
void write_results(int argc, char** argv, const std::vector<Row>& rows);

}  // namespace gradtune::bench
