// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels with bugs, and correct ones, which test the emulator.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace gradtune::emulator {

// The evidence of the bug.
enum class Shown : uint8_t {
  by_nothing,  // there is no bug
  by_results,  // results differ between schedules
  by_value,    // a wrong value is written: the pattern that fills shared memory
  by_error,    // the launch throws
  by_race,     // only ThreadSanitizer
};

struct Planted {
  std::string_view name;
  void (*kernel)(uint32_t* out);
  unsigned blocks;  // of 64 threads each
  Shown shown;
  std::string_view error;  // part of the thrown message
  bool is_race;            // ThreadSanitizer reports it, besides other evidence
};
std::span<const Planted> planted_bugs();

inline constexpr unsigned kPlantedThreads = 64, kPlantedWords = 4096;

}  // namespace gradtune::emulator
