// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/topk_select.h"

#include <hwy/cache_control.h>

#include <array>
#include <bit>
#include <cmath>

#include "engine/compress/momentum_kernels.h"
#include "engine/core/float16.h"
#include "engine/core/rng.h"

namespace gradtune::compress {
namespace {

constexpr int kBinBits = 12;
constexpr size_t kBins = 1 << kBinBits;

// Samples are taken four at a time, since memory is read in lines.
constexpr int64_t kSampleGroups = 4096, kSampleGroup = 4, kElementsPerGroup = 64;

using Buffer = std::array<Candidate, kBlockElements + kCandidateSlack>;

uint32_t key_of(float value) { return std::bit_cast<uint32_t>(value) & kAbsBits; }

int64_t pool_capacity(int64_t n, int64_t k) { return std::min(n, 4 * k + 4096); }

// How far ahead of scattered loads and stores their cache lines are asked for.
constexpr int64_t kPrefetch = 32;

}  // namespace

// What is known of a block.
struct TopkSelection::Block {
  uint32_t pool_at, pool_count;  // its candidates
  uint32_t above, ties;          // elements above and at the threshold; later: ties to be sent
  uint32_t sent_at, sent_count;  // what it sends, in the payload
};

int64_t TopkSelection::scratch_bytes(int64_t n, int64_t k) {
  const int64_t blocks = (n + kBlockElements - 1) / kBlockElements;
  return section_bytes(pool_capacity(n, k) * static_cast<int64_t>(sizeof(Candidate))) +
         section_bytes(blocks * static_cast<int64_t>(sizeof(Block))) + kBins * sizeof(uint32_t);
}

TopkSelection::TopkSelection(const Encode& job, int64_t k, const Carried& carried, Queue& queue)
    : job_(job),
      queue_(queue),
      carried_(carried),
      gradient_(carried.momentum == nullptr ? job.gradient.data() : carried.momentum_next),
      n_(static_cast<int64_t>(job.gradient.size())),
      k_(k),
      count_(k),
      unsent_factor_(compress::unsent_factor(job)) {
  std::byte* at = job.scratch.data();
  pool_ = {reinterpret_cast<Candidate*>(at), static_cast<size_t>(pool_capacity(n_, k))};
  at += section_bytes(static_cast<int64_t>(pool_.size_bytes()));
  blocks_ = reinterpret_cast<Block*>(at);
  at += section_bytes(blocks() * static_cast<int64_t>(sizeof(Block)));
  bins_ = {reinterpret_cast<uint32_t*>(at), kBins};
}

bool TopkSelection::run(const Sent& sent) {
  collect();
  const uint32_t largest = largest_.get();
  const float largest_sent = job_.scale * std::bit_cast<float>(largest);
  const bool finite =
      std::isfinite(core::widen_bf16(core::narrow_bf16(largest_sent))) && finite_product(unsent_factor_, largest);
  if (!finite) return false;
  if (carried_.bound != 0 && 2 * found_ >= k_) count_ = std::min(k_, found_.load());
  threshold_ = find_threshold();
  divide(threshold_);
  for_blocks(queue_, blocks(), [&](int64_t block) {
    send(block, threshold_, sent);
    if (job_.residual_next != nullptr && job_.add_to_residual_next) add_unsent(block, sent.positions);
  });
  return true;
}

// Bits of floats are nearly logarithms, so that is what distances are told in; a unit in the exponent is a factor of 2.
uint32_t TopkSelection::next_bound() const {
  constexpr int64_t kUnit = 1 << 23;
  const int64_t found = found_, bound = bound_, threshold = threshold_;
  if (threshold <= 1) return 0;  // fewer than k are not zero
  int64_t below = kUnit / 8;     // how far the next bound is below the threshold, or below a bound that was too high
  if (count_ < k_) {
    below = kUnit / 32 + (k_ - count_) * (kUnit / 4) / k_;
  } else if (found > k_ && threshold > bound) {
    const int64_t span = threshold - bound;
    below = std::clamp(span * (k_ / 4 + 8) / (found - k_), span / 2, span * 2);
    below = std::clamp(below, kUnit / 128, kUnit / 2);
  }
  return static_cast<uint32_t>(std::max<int64_t>(threshold - below, 1));
}

void TopkSelection::update_momentum_of(int64_t block) const {
  const int64_t begin = block * kBlockElements;
  update_momentum({.before = carried_.momentum + begin,
                   .gradient = job_.gradient.data() + begin,
                   .residual = nullptr,
                   .next = carried_.momentum_next + begin,
                   .decay = carried_.decay,
                   .gain = 1 - carried_.decay,
                   .n = static_cast<size_t>(std::min(n_ - begin, kBlockElements))});
}

TopkScan TopkSelection::scan_of(int64_t block, uint32_t bound) const {
  const int64_t begin = block * kBlockElements;
  return {.gradient = gradient_ + begin,
          .residual = offset(job_.residual, begin),
          .n = static_cast<size_t>(std::min(n_ - begin, kBlockElements)),
          .index = static_cast<uint32_t>(begin),
          .bound = bound,
          .errors = nullptr,
          .unsent_factor = unsent_factor_,
          .stream = false};
}

// Whether the pool has all elements that reach the bound.
bool TopkSelection::pooled(uint32_t bound) const {
  return bound >= bound_ && found_ <= static_cast<int64_t>(pool_.size());
}

// The elements of a block whose bits of |p| reach the bound, and perhaps some that do not. `buffer` may be used for
// them.
std::span<Candidate> TopkSelection::candidates(int64_t block, uint32_t bound, Candidate* buffer) const {
  if (pooled(bound)) return pool_.subspan(blocks_[block].pool_at, blocks_[block].pool_count);
  return {buffer, scan_topk(scan_of(block, bound), buffer)};
}

// A bound that about 1.3 to 1.6 k elements reach, as bits of |p|; at least 1, so that zeros (there may be a great many)
// are no candidates.
uint32_t TopkSelection::guess_bound() const {
  const int64_t groups = std::min(kSampleGroups, n_ / kElementsPerGroup);
  if (groups == 0) return 1;
  constexpr int kShift = 31 - kBinBits;
  const float* const gradient = gradient_;
  const float* const residual = job_.residual;
  const auto first_of = [&](int64_t group) {
    const int64_t begin = group * n_ / groups, end = (group + 1) * n_ / groups - kSampleGroup;
    core::Rng rng(static_cast<uint64_t>(group));
    return begin + static_cast<int64_t>(rng.below(static_cast<uint64_t>(end - begin)));
  };
  std::fill(bins_.begin(), bins_.end(), 0);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t ahead = first_of(std::min(group + kPrefetch, groups - 1));
    hwy::Prefetch(gradient + ahead);
    if (residual != nullptr) hwy::Prefetch(residual + ahead);
    const int64_t first = first_of(group);
    for (int64_t i = first; i < first + kSampleGroup; ++i) {
      ++bins_[key_of(residual == nullptr ? gradient[i] : gradient[i] + residual[i]) >> kShift];
    }
  }
  const double expected =
      static_cast<double>(groups * kSampleGroup) * static_cast<double>(k_) / static_cast<double>(n_);
  const double wanted = 1.25 * expected + 4 * std::sqrt(expected) + 8;
  double reached = 0;
  for (uint32_t bin = kBins - 1; bin > 0; --bin) {
    if (reached + bins_[bin] < wanted) {
      reached += bins_[bin];
      continue;
    }
    const double share = (wanted - reached) / bins_[bin];  // as if its values were spread evenly
    const uint32_t bound = ((bin + 1) << kShift) - static_cast<uint32_t>(share * (1 << kShift));
    return std::min(bound, kInfinityBits);
  }
  return 1;
}

void TopkSelection::collect() {
  // A guess samples the momentum, so it must be there.
  const bool updates_late = carried_.momentum != nullptr && carried_.bound != 0;
  if (carried_.momentum != nullptr && !updates_late) {
    for_blocks(queue_, blocks(), [&](int64_t block) { update_momentum_of(block); });
  }
  bound_ = carried_.bound != 0 ? carried_.bound : guess_bound();
  const bool bank = job_.residual_next != nullptr && !job_.add_to_residual_next;
  for_blocks(queue_, blocks(), [&](int64_t block) {
    if (updates_late) update_momentum_of(block);
    Buffer buffer;
    TopkScan scan = scan_of(block, bound_);
    scan.errors = bank ? job_.residual_next + block * kBlockElements : nullptr;
    scan.stream = n_ * 4 >= kStreamBytes;
    const size_t count = scan_topk(scan, buffer.data());
    uint32_t largest = 0;
    for (size_t i = 0; i < count; ++i) largest = std::max(largest, key_of(buffer[i].value));
    largest_.add(largest);
    const int64_t at = found_.fetch_add(static_cast<int64_t>(count), std::memory_order_relaxed);
    blocks_[block].pool_at = static_cast<uint32_t>(at);
    blocks_[block].pool_count = static_cast<uint32_t>(count);
    if (at + static_cast<int64_t>(count) > static_cast<int64_t>(pool_.size())) return;
    std::copy_n(buffer.data(), count, pool_.data() + at);
  });
}

// The bits of the count-th largest |p|: histograms of ever smaller ranges that hold it, until one value is left.
uint32_t TopkSelection::find_threshold() const {
  const bool guess_holds = found_ >= count_;
  if (!guess_holds && bound_ == 1) return 0;  // fewer than k are not zero
  uint32_t low = guess_holds ? bound_ : 0;
  uint32_t high = std::max(largest_.get(), bound_ - 1);
  auto rank = static_cast<uint32_t>(count_);  // among those <= high
  while (low < high) {
    const int shift = std::max(0, static_cast<int>(std::bit_width(high - low)) - kBinBits);
    count_bins(low, high, shift);
    uint32_t bin = kBins - 1;
    while (bins_[bin] < rank) rank -= bins_[bin--];
    low += bin << shift;
    high = std::min(high, low + ((1U << shift) - 1));
  }
  return low;
}

void TopkSelection::count_bins(uint32_t low, uint32_t high, int shift) const {
  std::fill(bins_.begin(), bins_.end(), 0);
  // A few tasks for each thread: every one of them has bins to clear and to add.
  const int64_t step = blocks() / (queue_.threads() == 1 ? 1 : 4 * queue_.threads()) + 1;
  for_ranges(queue_, blocks(), step, [=, this](int64_t begin, int64_t end) {
    Buffer buffer;
    std::array<uint32_t, kBins> bins{};
    for (int64_t block = begin; block < end; ++block) {
      for (const Candidate& candidate : candidates(block, low, buffer.data())) {
        const uint32_t above_low = key_of(candidate.value) - low;  // wraps around for keys below
        if (above_low <= high - low) ++bins[above_low >> shift];
      }
    }
    for (size_t bin = 0; bin < kBins; ++bin) {
      if (bins[bin] == 0) continue;
      std::atomic_ref(bins_[bin]).fetch_add(bins[bin], std::memory_order_relaxed);
    }
  });
}

// How many elements each block sends, how many of them are ties, and where they go.
void TopkSelection::divide(uint32_t threshold) {
  for_blocks(queue_, blocks(), [&](int64_t index) {
    Block& block = blocks_[index];
    block.above = block.ties = 0;
    if (threshold == 0 && bound_ == 1) {  // ties are what is no candidate
      block.above = block.pool_count;
      block.ties = static_cast<uint32_t>(scan_of(index, 0).n) - block.above;
      return;
    }
    Buffer buffer;
    const std::span<Candidate> list = candidates(index, threshold, buffer.data());
    uint32_t kept = 0;
    for (const Candidate candidate : list) {  // drops what is below
      list[kept] = candidate;
      kept += key_of(candidate.value) >= threshold;
      block.above += key_of(candidate.value) > threshold;
    }
    block.ties = kept - block.above;
    if (pooled(threshold)) block.pool_count = kept;
  });
  auto ties_left = static_cast<uint32_t>(count_);
  for (int64_t i = 0; i < blocks(); ++i) ties_left -= blocks_[i].above;
  uint32_t sent = 0;
  for (int64_t i = 0; i < blocks(); ++i) {
    Block& block = blocks_[i];
    block.ties = std::min(block.ties, ties_left);
    ties_left -= block.ties;
    block.sent_at = sent;
    block.sent_count = block.above + block.ties;
    sent += block.sent_count;
  }
}

// What is kept of an element that was sent, in units of p.
float TopkSelection::rounding_error(float value, uint16_t sent) const {
  return unsent_factor_ * value - job_.error_scale * core::widen_bf16(sent);
}

void TopkSelection::send(int64_t index, uint32_t threshold, const Sent& sent) const {
  const Block& block = blocks_[index];
  sent.starts[index] = block.sent_at;
  Buffer buffer;
  const std::span<const Candidate> list = candidates(index, block.ties > 0 ? threshold : threshold + 1, buffer.data());
  float* const errors = job_.residual_next;
  const auto begin = static_cast<uint32_t>(index * kBlockElements);
  uint32_t ties = block.ties;
  uint32_t at = block.sent_at;
  for (size_t i = 0; i < list.size(); ++i) {
    const size_t ahead = std::min(i + kPrefetch, list.size() - 1);
    if (errors != nullptr) hwy::Prefetch(errors + list[ahead].index);
    const uint32_t key = key_of(list[i].value);
    if (key < threshold || (key == threshold && ties == 0)) continue;
    ties -= key == threshold;
    sent.positions[at] = static_cast<uint16_t>(list[i].index - begin);
    sent.values[at] = core::narrow_bf16(job_.scale * list[i].value);
    if (errors != nullptr) {
      const float error = rounding_error(list[i].value, sent.values[at]);
      errors[list[i].index] = job_.add_to_residual_next ? errors[list[i].index] + error : error;
    }
    if (carried_.momentum != nullptr) carried_.momentum_next[list[i].index] = 0;
    ++at;
  }
}

// Adds the error of a block to the next residual: of what lies between its sent elements, which have theirs.
void TopkSelection::add_unsent(int64_t index, const uint16_t* positions) const {
  const Block& block = blocks_[index];
  const auto add = [&](int64_t begin, int64_t end) {
    (void)keep_unsent({.gradient = gradient_ + begin,
                       .residual = offset(job_.residual, begin),
                       .factor = unsent_factor_,
                       .errors = job_.residual_next + begin,
                       .add = true,
                       .n = static_cast<size_t>(end - begin),
                       .stream = false});
  };
  const int64_t first = index * kBlockElements;
  const int64_t end = std::min(n_, first + kBlockElements);
  int64_t begin = first;
  for (uint32_t i = block.sent_at; i < block.sent_at + block.sent_count; ++i) {
    add(begin, first + positions[i]);
    begin = first + positions[i] + 1;
  }
  add(begin, end);
}

}  // namespace gradtune::compress
