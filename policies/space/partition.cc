// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/partition.h"

#include <algorithm>

#include "engine/core/arenas.h"
#include "policies/cost/cost_model.h"

namespace gradtune::policies {
namespace {

// The constant c of the header: the cost of encoding or copying one byte of gradient, at 4 GB/s. It only ranks cuts:
// a factor of two either way changes the best nested partition of those five jobs by less than 1 %.
constexpr double kHandlingUsPerByte = 0.25e-3;

// Pieces of a tensor are never smaller than this, and cuts stay aligned for vector code.
constexpr int64_t kSmallestPieceBytes = 64 << 10;
constexpr int64_t kAlignmentElements = 1024;

// A cut at a tensor's end keeps whole tensors together, so it is chosen unless an inner cut is better by this
// factor.
constexpr double kInsideMustBeat = 1.1;

struct Group {
  std::vector<core::Slice> slices;
  // The best cut: after `cut_length` elements of slice `cut_slice`. A score of 0 means that there is none.
  double score = 0;
  size_t cut_slice = 0;
  int64_t cut_length = 0;
};

class Cutter {
 public:
  explicit Cutter(const core::GradientTable& table) : table_(table), ready_us_(ready_times_us(table)) {}

  std::vector<Group> whole() const {
    std::vector<Group> groups;
    const core::ArenaLayout layout = core::lay_arenas(table_);
    for (size_t arena = 0; arena < layout.arenas.size(); ++arena) {
      Group group;
      for (size_t t = 0; t < table_.tensors.size(); ++t) {
        const int64_t numel = table_.tensors[t].numel;
        if (static_cast<size_t>(layout.tensors[t].arena) != arena || numel == 0) continue;
        group.slices.push_back({static_cast<int32_t>(t), 0, numel});
      }
      if (group.slices.empty()) continue;
      find_cut(group);
      groups.push_back(std::move(group));
    }
    return groups;
  }

  std::pair<Group, Group> split(const Group& group) const {
    const auto at = group.slices.begin() + static_cast<std::ptrdiff_t>(group.cut_slice);
    Group first{.slices = {group.slices.begin(), at + 1}};
    Group second{.slices = {at, group.slices.end()}};
    first.slices.back().length = group.cut_length;
    second.slices.front().offset += group.cut_length;
    second.slices.front().length -= group.cut_length;
    if (second.slices.front().length == 0) second.slices.erase(second.slices.begin());
    find_cut(first);
    find_cut(second);
    return {std::move(first), std::move(second)};
  }

 private:
  double ready_us(const core::Slice& slice) const { return ready_us_[static_cast<size_t>(slice.tensor)]; }

  void find_cut(Group& group) const {
    const auto width = core::bytes_per_element(table_.tensors[static_cast<size_t>(group.slices[0].tensor)].dtype);
    int64_t total = 0;
    for (const core::Slice& slice : group.slices) total += slice.length * width;
    const double last_us = ready_us(group.slices.back());
    int64_t begin = 0;
    for (size_t s = 0; s < group.slices.size(); ++s) {
      const core::Slice& slice = group.slices[s];
      const int64_t end = begin + slice.length * width;
      const double wait_us = last_us - ready_us(slice);
      const auto score = [&](int64_t x) {
        return static_cast<double>(x) * (wait_us + static_cast<double>(total - x) * kHandlingUsPerByte);
      };
      const auto offer = [&](double value, int64_t length) {
        if (value <= group.score) return;
        group.score = value;
        group.cut_slice = s;
        group.cut_length = length;
      };
      if (end < total) offer(score(end), slice.length);
      const int64_t low = begin + kSmallestPieceBytes, high = end - kSmallestPieceBytes;
      if (low < high) {
        // The score is a parabola in x; this is its maximum between low and high.
        const double top = (static_cast<double>(total) + wait_us / kHandlingUsPerByte) / 2;
        const auto x = static_cast<int64_t>(std::clamp(top, static_cast<double>(low), static_cast<double>(high)));
        const int64_t length = (x - begin) / width / kAlignmentElements * kAlignmentElements;
        offer(score(begin + length * width) / kInsideMustBeat, length);
      }
      begin = end;
    }
  }

  const core::GradientTable& table_;
  const std::vector<double> ready_us_;
};

Partition in_order_of_readiness(const std::vector<Group>& groups) {
  Partition partition;
  for (const Group& group : groups) partition.push_back(group.slices);
  std::stable_sort(partition.begin(), partition.end(),
                   [](const auto& a, const auto& b) { return a.back().tensor < b.back().tensor; });
  return partition;
}

}  // namespace

std::vector<Partition> nested_partitions(const core::GradientTable& table, int most_buckets) {
  const Cutter cutter(table);
  std::vector<Group> groups = cutter.whole();
  std::vector<Partition> partitions;
  if (groups.empty()) return partitions;
  partitions.push_back(in_order_of_readiness(groups));
  while (static_cast<int>(groups.size()) < most_buckets) {
    // Among equal ones it takes the last: a small last bucket leaves little to wait for when backward ends.
    size_t best = 0;
    for (size_t g = 1; g < groups.size(); ++g) {
      if (groups[g].score >= groups[best].score) best = g;
    }
    if (groups[best].score <= 0) break;
    auto [first, second] = cutter.split(groups[best]);
    groups[best] = std::move(first);
    groups.insert(groups.begin() + static_cast<std::ptrdiff_t>(best) + 1, std::move(second));
    partitions.push_back(in_order_of_readiness(groups));
  }
  return partitions;
}

}  // namespace gradtune::policies
