// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels with bugs, and right ones, by which the emulator is tested.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace gradtune::emulator {

// What shows the bug.
enum class Shown : uint8_t {
  by_nothing,  // there is none
  by_results,  // they are not the same in all schedules
  by_value,    // what is written is not what it should be: the pattern that shared memory is filled with
  by_error,    // the launch throws
  by_race,     // ThreadSanitizer alone
};

struct Planted {
  std::string_view name;
  void (*kernel)(uint32_t* out);
  unsigned blocks;  // of 64 threads
  Shown shown;
  std::string_view error;  // part of what is thrown
  bool is_race;            // ThreadSanitizer reports it, whatever else shows it
};
std::span<const Planted> planted_bugs();

inline constexpr unsigned kPlantedThreads = 64, kPlantedWords = 4096;

}  // namespace gradtune::emulator
