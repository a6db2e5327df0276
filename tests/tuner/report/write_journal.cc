// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: write_journal KIND > FILE
// Writes a simulated journal for tests of report pages. KIND is `changes` (the link becomes slow, a bucket exceeds
// its budget) or `many` (540 buckets, names that try to be markup).
#include <cstdio>
#include <string_view>

#include "tests/tuner/report/simulated_journal.h"

int main(int argc, char** argv) {
  const std::string_view kind = argc == 2 ? argv[1] : "";
  if (kind != "changes" && kind != "many") {
    std::fputs("usage: write_journal changes|many\n", stderr);
    return 2;
  }
  const auto journal = kind == "many" ? gradtune::tuner::many_buckets_journal(300, 0)
                                      : gradtune::tuner::reference_journal(2000, 700, 500);
  std::fwrite(journal.text.data(), 1, journal.text.size(), stdout);
  return 0;
}
