// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: run_planted_bug NUMBER: runs that kernel once under ThreadSanitizer, with which this program is built.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "tests/emulator/emulator.h"
#include "tests/emulator/planted_bugs.h"

int main(int argc, char** argv) {
  using namespace gradtune::emulator;
  const auto number = argc == 2 ? static_cast<size_t>(std::atoi(argv[1])) : planted_bugs().size();
  if (number >= planted_bugs().size()) return 2;
  const Planted& bug = planted_bugs()[number];
  std::vector<uint32_t> out(kPlantedWords);
  try {
    launch(bug.blocks, kPlantedThreads, [&] { bug.kernel(out.data()); });
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 3;
  }
  return 0;
}
