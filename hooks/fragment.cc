// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/fragment.h"

#include <algorithm>
#include <filesystem>
#include <ranges>

#include "hooks/refusal.h"

namespace gradtune {

void check_fragments(int64_t fragments, size_t parameters) {
  if (fragments <= static_cast<int64_t>(parameters)) return;
  refuse("fragments is " + std::to_string(fragments) +
         "; allowed is at most the number of trained parameters, which is " + std::to_string(parameters));
}

// A parameter belongs to the fragment in which its middle lies, but each fragment has one at least.
std::vector<std::string> outside(const Fragment& fragment, const std::vector<NamedTensor>& parameters) {
  int64_t elements = 0, left = 0;
  for (const NamedTensor& each : parameters) {
    if (!each.tensor.requires_grad()) continue;
    elements += each.tensor.numel();
    ++left;
  }
  check_fragments(fragment.count, static_cast<size_t>(left));
  std::vector<std::string> names;
  int64_t before = 0, last = -1;
  for (const NamedTensor& each : parameters) {
    int64_t in = 0;
    if (each.tensor.requires_grad()) {
      const int64_t of_middle =
          (2 * before + each.tensor.numel()) * fragment.count / std::max<int64_t>(1, 2 * elements);
      // No fragment is left out, and the parameters that are left are enough for the later ones.
      in = std::clamp(of_middle, std::max(last, fragment.count - left), std::min(last + 1, fragment.count - 1));
      last = in;
      before += each.tensor.numel();
      --left;
    }
    if (in != fragment.number) names.push_back(each.name);
  }
  return names;
}

std::string files_of(const Fragment& fragment, const std::string& paths) {
  if (fragment.is_first() || paths.empty()) return paths;
  const std::string number = ".fragment-" + std::to_string(fragment.number + 1);
  std::string all;
  for (const auto part : std::views::split(paths, ',')) {
    const std::filesystem::path given(std::string(part.begin(), part.end()));
    if (!all.empty()) all += ',';
    all += (given.parent_path() / (given.stem().string() + number + given.extension().string())).string();
  }
  return all;
}

}  // namespace gradtune
