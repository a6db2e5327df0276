// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/topk/topk_select.h"

#include <hwy/cache_control.h>

#include <bit>
#include <cmath>
#include <functional>

#include "engine/compress/topk/topk_layout.h"
#include "engine/core/float16.h"
#include "engine/core/rng.h"

namespace gradtune::compress {
namespace {

constexpr int kBinBits = 12;
constexpr size_t kBins = 1 << kBinBits;

// Samples are taken four at a time, since memory is read in cache lines.
constexpr int64_t kSampleGroups = 4096, kSampleGroup = 4, kElementsPerGroup = 64;

using Buffer = std::array<Candidate, kBlockElements + kCandidateSlack>;

uint32_t key_of(float value) { return std::bit_cast<uint32_t>(value) & kAbsBits; }

int64_t pool_capacity(int64_t n, int64_t k) { return std::min(n, 4 * k + 4096); }

// The distance, in iterations, at which the cache lines of scattered loads are prefetched.
constexpr int64_t kPrefetch = 32;

}  // namespace

// The results for a block.
struct TopkSelection::Block {
  uint32_t pool_at, pool_count;  // its candidates
  uint32_t above, ties;          // elements above and at the threshold; later: ties to be sent
  uint32_t sent_at, sent_count;  // the range of its sent elements in the payload
};

int64_t TopkSelection::scratch_bytes(int64_t n, int64_t k) {
  const int64_t blocks = (n + kBlockElements - 1) / kBlockElements;
  return section_bytes(pool_capacity(n, k) * static_cast<int64_t>(sizeof(Candidate))) +
         section_bytes(blocks * static_cast<int64_t>(sizeof(Block))) + kBins * sizeof(uint32_t);
}

TopkSelection::TopkSelection(const Encode& job, int64_t k, const Carried& carried, HostQueue& queue)
    : job_(job),
      queue_(queue),
      carried_(carried),
      n_(static_cast<int64_t>(job.gradient.size())),
      k_(k),
      count_(k),
      errors_{job.scale, job.error_scale, unsent_factor(job)} {
  std::byte* at = job.scratch.data();
  pool_ = {reinterpret_cast<Candidate*>(at), static_cast<size_t>(pool_capacity(n_, k))};
  at += section_bytes(static_cast<int64_t>(pool_.size_bytes()));
  blocks_ = reinterpret_cast<Block*>(at);
  at += section_bytes(blocks() * static_cast<int64_t>(sizeof(Block)));
  bins_ = {reinterpret_cast<uint32_t*>(at), kBins};
}

bool TopkSelection::run(const Sent& sent) {
  collect(carried_.bound != 0 ? carried_.bound : guess_bound());
  const bool too_high = carried_.bound != 0 && 2 * found_ < k_;
  if (too_high) collect(guess_bound());
  const uint32_t largest = largest_.get();
  const float largest_sent = job_.scale * std::bit_cast<float>(largest);
  const bool finite = std::isfinite(core::widen_bf16(core::narrow_bf16(largest_sent))) &&
                      finite_product(errors_.unsent_factor, largest);
  if (!finite) return false;
  if (carried_.bound != 0 && !too_high) count_ = std::min(k_, found_.load());
  threshold_ = find_threshold();
  divide(threshold_);
  for_blocks(queue_, blocks(), [&](int64_t block) {
    send(block, threshold_, sent);
    if (adds()) add_unsent(block, sent.positions);
  });
  return true;
}

uint32_t TopkSelection::next_bound() const {
  return next_topk_bound({.found = found_, .bound = bound_, .threshold = threshold_, .count = count_, .k = k_});
}

float TopkSelection::momentum_of(int64_t element) const {
  return carried_.momentum.of(carried_.momentum.before[element], job_.gradient.data()[element]);
}

TopkScan TopkSelection::scan_of(int64_t block, uint32_t bound) const {
  const int64_t begin = block * kBlockElements;
  Momentum momentum = carried_.momentum.from(begin);
  momentum.next = nullptr;
  return {.gradient = job_.gradient.data() + begin,
          .residual = offset(job_.residual, begin),
          .n = static_cast<size_t>(std::min(n_ - begin, kBlockElements)),
          .index = static_cast<uint32_t>(begin),
          .bound = bound,
          .errors = errors_,
          .momentum = momentum,
          .kept = nullptr,
          .stream = false};
}

// True if the pool has all elements that reach the bound.
bool TopkSelection::pooled(uint32_t bound) const {
  return bound >= bound_ && found_ <= static_cast<int64_t>(pool_.size());
}

// The elements of a block whose bits of |p| reach the bound, and all candidates. They may be written to `buffer`.
std::span<const Candidate> TopkSelection::candidates(int64_t block, uint32_t bound, Candidate* buffer) const {
  if (pooled(bound)) return pool_.subspan(blocks_[block].pool_at, blocks_[block].pool_count);
  return {buffer, scan_topk(scan_of(block, std::min(bound, bound_)), buffer).count};
}

// A bound that about 1.3 to 1.6 k elements reach, as bits of |p|. It is at least 1, so that zeros, which may be many,
// are no candidates.
uint32_t TopkSelection::guess_bound() const {
  const int64_t groups = std::min(kSampleGroups, n_ / kElementsPerGroup);
  if (groups == 0) return 1;
  constexpr int kShift = 31 - kBinBits;
  const float* const gradient = job_.gradient.data();
  const float* const residual = job_.residual;
  const auto p_of = [&](int64_t i) {
    const float of_gradient = carried_.momentum.before == nullptr ? gradient[i] : momentum_of(i);
    return residual == nullptr ? of_gradient : of_gradient + residual[i];
  };
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
    for (int64_t i = first; i < first + kSampleGroup; ++i) ++bins_[key_of(p_of(i)) >> kShift];
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

void TopkSelection::collect(uint32_t bound) {
  bound_ = bound;
  found_ = 0;
  const bool streamed = n_ * 4 >= kStreamBytes;
  for_blocks(queue_, blocks(), [&](int64_t block) {
    const int64_t begin = block * kBlockElements;
    Buffer buffer;
    TopkScan scan = scan_of(block, bound_);
    scan.momentum = carried_.momentum.from(begin);
    scan.kept = banks() ? job_.residual_next + begin : nullptr;
    scan.stream = streamed;
    const auto [count, largest] = scan_topk(scan, buffer.data());
    largest_.add(largest);
    const int64_t at = found_.fetch_add(static_cast<int64_t>(count), std::memory_order_relaxed);
    blocks_[block].pool_at = static_cast<uint32_t>(at);
    blocks_[block].pool_count = static_cast<uint32_t>(count);
    if (at + static_cast<int64_t>(count) > static_cast<int64_t>(pool_.size())) return;
    std::copy_n(buffer.data(), count, pool_.data() + at);
  });
}

// The bits of the count-th largest |p|, by histograms of ever smaller ranges that hold it, until few enough elements
// are left. If all candidates are sent, the largest bits below the bound.
uint32_t TopkSelection::find_threshold() const {
  if (found_ == count_) return bound_ - 1;
  const bool guess_holds = found_ >= count_;
  if (!guess_holds && bound_ == 1) return 0;  // fewer than k are not zero
  uint32_t low = guess_holds ? bound_ : 0;
  uint32_t high = std::max(largest_.get(), bound_ - 1);
  auto rank = static_cast<uint32_t>(count_);                            // among those <= high
  auto held = static_cast<uint64_t>(guess_holds ? found_.load() : n_);  // from low to high
  while (low < high && held > kBins) {
    const int shift = std::max(0, static_cast<int>(std::bit_width(high - low)) - kBinBits);
    count_bins(low, high, shift);
    uint32_t bin = kBins - 1;
    while (bins_[bin] < rank) rank -= bins_[bin--];
    held = bins_[bin];
    low += bin << shift;
    high = std::min(high, low + ((1U << shift) - 1));
  }
  return low < high ? select(low, high, rank) : low;
}

// The rank-th largest of the bits from low to high. There are no more of them than bins.
uint32_t TopkSelection::select(uint32_t low, uint32_t high, uint32_t rank) const {
  std::atomic<uint32_t> count = 0;
  for_blocks(queue_, blocks(), [&](int64_t block) {
    Buffer buffer;
    std::array<uint32_t, kBlockElements + 1> keys;  // one more, which is not counted
    uint32_t found = 0;
    for (const Candidate& candidate : candidates(block, low, buffer.data())) {
      keys[found] = key_of(candidate.value);
      found += keys[found] - low <= high - low;
    }
    std::copy_n(keys.begin(), found, bins_.begin() + count.fetch_add(found, std::memory_order_relaxed));
  });
  const auto nth = bins_.begin() + rank - 1;
  std::nth_element(bins_.begin(), nth, bins_.begin() + count.load(), std::greater<>());
  return *nth;
}

void TopkSelection::count_bins(uint32_t low, uint32_t high, int shift) const {
  std::fill(bins_.begin(), bins_.end(), 0);
  // A few tasks for each thread: every task has to clear and add up its own bins.
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

// Computes for each block how many elements it sends, how many of them are ties, and their place in the payload.
void TopkSelection::divide(uint32_t threshold) {
  for_blocks(queue_, blocks(), [&](int64_t index) {
    Block& block = blocks_[index];
    block.above = block.ties = 0;
    if (found_ == count_) {
      block.above = block.pool_count;
      return;
    }
    if (threshold == 0 && bound_ == 1) {  // all elements that are no candidates tie
      block.above = block.pool_count;
      block.ties = static_cast<uint32_t>(std::min(n_ - index * kBlockElements, kBlockElements)) - block.above;
      return;
    }
    Buffer buffer;
    uint32_t above = 0, kept = 0;
    for (const Candidate& candidate : candidates(index, threshold, buffer.data())) {
      kept += key_of(candidate.value) >= threshold;
      above += key_of(candidate.value) > threshold;
    }
    block.above = above;
    block.ties = kept - above;
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

// Writes the payload entry of an element.
void TopkSelection::send(const Candidate& candidate, uint32_t begin, uint32_t at, const Sent& sent) const {
  sent.positions[at] = static_cast<uint16_t>(candidate.index - begin);
  sent.values[at] = core::narrow_bf16(job_.scale * candidate.value);
}

// Too many candidates are not sent for branches to be predicted, so the loop over them has none.
void TopkSelection::send(int64_t index, uint32_t threshold, const Sent& sent) const {
  const Block& block = blocks_[index];
  const auto begin = static_cast<uint32_t>(index * kBlockElements);
  sent.starts[index] = block.sent_at;
  if (found_ == count_ && !adds()) {  // all candidates are sent, and their errors are already right
    send_all({.candidates = pool_.data() + block.pool_at, .n = block.pool_count, .first = begin, .scale = job_.scale},
             sent.positions + block.sent_at, sent.values + block.sent_at);
    return;
  }
  Buffer buffer;
  const std::span<const Candidate> list = candidates(index, block.ties > 0 ? threshold : threshold + 1, buffer.data());
  const auto is_kept_as_sent = [&](uint32_t key) { return key >= bound_; };
  std::array<uint16_t, kBlockElements + 1> taken, mistaken;  // places in the list; one more, that is not counted
  uint32_t takes = 0, mistakes = 0, ties = block.ties;
  for (size_t i = 0; i < list.size(); ++i) {
    const uint32_t key = key_of(list[i].value);
    const bool is_tie = key == threshold && ties > 0, is_sent = key > threshold || is_tie;
    ties -= is_tie;
    taken[takes] = mistaken[mistakes] = static_cast<uint16_t>(i);
    takes += is_sent;
    mistakes += is_sent != is_kept_as_sent(key);
  }
  for (uint32_t i = 0; i < takes; ++i) {
    const Candidate& candidate = list[taken[i]];
    send(candidate, begin, block.sent_at + i, sent);
    if (adds()) job_.residual_next[candidate.index] += errors_.of_sent(candidate.value);
  }
  for (uint32_t i = 0; banks() && i < mistakes; ++i) hwy::Prefetch(job_.residual_next + list[mistaken[i]].index);
  for (uint32_t i = 0; i < mistakes; ++i) {
    const Candidate& candidate = list[mistaken[i]];
    keep(candidate, !is_kept_as_sent(key_of(candidate.value)));
  }
}

// Corrects the error and the momentum of an element that the scan misjudged.
void TopkSelection::keep(const Candidate& candidate, bool is_sent) const {
  if (banks()) {
    const float p = candidate.value;
    job_.residual_next[candidate.index] = is_sent ? errors_.of_sent(p) : errors_.of_unsent(p);
  }
  if (carried_.momentum.before != nullptr) {
    carried_.momentum.next[candidate.index] = is_sent ? 0 : momentum_of(candidate.index);
  }
}

// Adds the errors of a block's elements that are not sent to the next residual. Sent elements have theirs already.
void TopkSelection::add_unsent(int64_t index, const uint16_t* positions) const {
  const Block& block = blocks_[index];
  const auto add = [&](int64_t begin, int64_t end) {
    (void)keep_unsent({.gradient = job_.gradient.data() + begin,
                       .residual = offset(job_.residual, begin),
                       .factor = errors_.unsent_factor,
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
