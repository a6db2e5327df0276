// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The file that a benchmark writes: its rows, and the run that they are of. tests/bench/README.md describes the format;
// save() of support/shaped.py writes the same for benchmarks in Python.
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
  double anchor = 0;                  // what the value is compared with
  double ratio = 0;                   // value / anchor
  std::array<double, 2> spread = {};  // of the ratio, unless the benchmark says otherwise
  std::optional<double> goal = {};
  std::optional<bool> met = {};
  std::optional<double> ms = {};  // of one call, where the value is a rate
};

// What main() is: runs the benchmark, and says on standard error what it throws, with status 1.
int run_benchmark(int argc, char** argv, int (*benchmark)(int argc, char** argv));

// Takes main's arguments, of which the last two are BUILD_FOLDER OUTPUT.json. Numbers have four significant digits.
void write_results(int argc, char** argv, const std::vector<Row>& rows);

}  // namespace gradtune::bench
