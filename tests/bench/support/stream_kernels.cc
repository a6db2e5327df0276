// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/stream_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/support/stream_kernels.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace gradtune::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Turns of a group, in which an array of fp32 has 256 bytes.
constexpr int64_t kTurns = 8;

struct Part {
  int64_t first, last;
};
HWY_INLINE Part part_of(int64_t bytes, int64_t turn, int64_t turns) {
  if (bytes >= 64 * turns) return {turn * bytes / turns, (turn + 1) * bytes / turns};
  return turn * 64 < bytes ? Part{turn * 64, turn * 64 + 64} : Part{0, 0};
}

template <bool past_caches>
void stream_groups(const Stream& stream, int64_t begin, int64_t end, int64_t turns) {
  const hn::CappedTag<uint8_t, 64> d;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  // Depends on all reads, so that none is left out. It is not zero, since some processors write zeros twice as fast
  // as anything else.
  auto seen = hn::Set(d, uint8_t{0x5a});
  for (int64_t group = begin; group < end; ++group) {
    for (int64_t turn = 0; turn < turns; ++turn) {
      for (const Stream::Read& read : stream.reads) {
        const auto [first, last] = part_of(read.bytes, turn, turns);
        const auto* const from =
            reinterpret_cast<const uint8_t*>(read.data) + (group + read.ahead) % stream.groups * read.bytes;
        for (int64_t i = first; i < last; i += step) seen = hn::Add(seen, hn::Load(d, from + i));
      }
      for (const Stream::Write& write : stream.writes) {
        const auto [first, last] = part_of(write.bytes, turn, turns);
        auto* const to = reinterpret_cast<uint8_t*>(write.data) + group * write.bytes;
        for (int64_t i = first; i < last; i += step) {
          if constexpr (past_caches) {
            hn::Stream(seen, d, to + i);
          } else {
            hn::Store(seen, d, to + i);
          }
        }
      }
    }
  }
  if (past_caches) hwy::FlushStream();
  [[maybe_unused]] const volatile uint8_t used = hn::GetLane(seen);
}

void stream_any(const Stream& stream, int64_t begin, int64_t end, const StreamForm& form) {
  const int64_t turns = form.takes_turns ? kTurns : 1;
  if (form.past_caches) {
    stream_groups<true>(stream, begin, end, turns);
  } else {
    stream_groups<false>(stream, begin, end, turns);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::bench {

HWY_EXPORT(stream_any);

int64_t Stream::bytes() const {
  int64_t of_group = 0;
  for (const Read& read : reads) of_group += read.bytes;
  for (const Write& write : writes) of_group += write.bytes;
  return groups * of_group;
}

void run_stream(const Stream& stream, int64_t begin, int64_t end, const StreamForm& form) {
  HWY_DYNAMIC_DISPATCH(stream_any)(stream, begin, end, form);
}

}  // namespace gradtune::bench
#endif
