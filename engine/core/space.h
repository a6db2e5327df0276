// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory spaces: the place of memory, and of the work that uses it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradtune::core {

enum class Space : uint8_t { host, cuda };

inline constexpr std::array kSpaces = {Space::host, Space::cuda};

constexpr std::string_view to_string(Space space) { return space == Space::host ? "host" : "cuda"; }

// One value for each space.
template <typename T>
struct PerSpace {
  std::array<T, kSpaces.size()> values{};

  constexpr T& operator[](Space space) { return values[static_cast<size_t>(space)]; }
  constexpr const T& operator[](Space space) const { return values[static_cast<size_t>(space)]; }

  bool operator==(const PerSpace&) const = default;
};

}  // namespace gradtune::core
