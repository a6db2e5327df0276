// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `topk`, `threshk` and `dgc` on a device, by the algorithm of the host (topk_select.h). A bound that a little more
// than k elements should reach is carried, or guessed from a sample. One pass over memory collects the candidates
// that reach it and writes all errors as if exactly the candidates were sent. All later kernels touch candidates
// alone. If the guess was wrong, chunks are read again. The work depends on what was found, but the host waits for no
// kernel: each kernel reads the state and ends at once if it has nothing to do.
//
// A chunk is the 8192 elements of a block of the payload. Each block of threads processes one.
#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/topk/topk_select.cuh"

namespace gradtune::compress::cuda {
namespace {

// --- The elements that are sent.

// True if the candidates include all elements of a chunk whose keys are at least `key`.
__device__ __forceinline__ bool is_pooled(const TopkJob& job, uint32_t key) {
  return key >= job.state->bound && job.state->found <= job.pool_size;
}

struct CountSent {
  using Job = TopkJob;
  struct Shared {
    uint32_t above, ties;
  };

  static __device__ void run(const Job& job, uint32_t chunk) {
    GRADTUNE_SHARED(Shared, shared);
    const State& state = *job.state;
    if (!state.finite) return;
    Chunk& of = job.chunks[chunk];
    if (!state.searches) {
      if (threadIdx.x != 0) return;
      const int64_t left = job.of.n - int64_t{chunk} * kChunk;
      of.above = of.pool_count;
      of.ties = state.zeros_tie ? static_cast<uint32_t>(left < kChunk ? left : kChunk) - of.pool_count : 0;
      return;
    }
    if (threadIdx.x == 0) shared.above = shared.ties = 0;
    __syncthreads();
    uint32_t above = 0, ties = 0;
    for_keys(job, chunk, !is_pooled(job, state.threshold), [&](uint32_t key) {
      above += key > state.threshold ? 1 : 0;
      ties += key == state.threshold ? 1 : 0;
    });
    above = __reduce_add_sync(kAllLanes, above);
    ties = __reduce_add_sync(kAllLanes, ties);
    if (lane_of_warp() == 0) {
      atomicAdd(&shared.above, above);
      atomicAdd(&shared.ties, ties);
    }
    __syncthreads();
    if (threadIdx.x == 0) of.above = shared.above, of.ties = shared.ties;
  }
};

// Computes where each chunk writes what it sends and how many of its ties it sends. Also writes the header and the
// carried state. One block of threads.
struct Divide {
  using Job = TopkJob;
  struct Shared {
    uint32_t sums[kWarps], more[kWarps];
  };

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    GRADTUNE_SHARED(Shared, shared);
    const State& state = *job.state;
    uint32_t above = 0;
    for (uint32_t chunk = threadIdx.x; state.finite && chunk < job.chunk_count; chunk += kThreads) {
      above += job.chunks[chunk].above;
    }
    uint32_t all_above;
    (void)exclusive_sum_of_block(above, shared.sums, all_above);
    __syncthreads();
    const uint32_t wanted = state.count - all_above;  // ties
    uint32_t ties_before = 0, sent_before = 0;
    for (uint32_t first = 0; first < job.chunk_count; first += kThreads) {
      const uint32_t chunk = first + threadIdx.x;
      const bool exists = chunk < job.chunk_count;
      Chunk of{};
      if (exists && state.finite) of = job.chunks[chunk];
      uint32_t ties, sent;
      const uint32_t seen = ties_before + exclusive_sum_of_block(of.ties, shared.sums, ties);
      const uint32_t left = seen < wanted ? wanted - seen : 0;
      of.ties = of.ties < left ? of.ties : left;
      of.sent_at = sent_before + exclusive_sum_of_block(of.above + of.ties, shared.more, sent);
      if (exists) {
        if (state.finite) job.chunks[chunk] = of;
        // Values that are not finite have no order: the first k elements are sent, as NaN.
        const int64_t at = int64_t{chunk} * kChunk;
        job.starts[chunk] = state.finite ? of.sent_at : static_cast<uint32_t>(at < job.k ? at : job.k);
      }
      ties_before += ties;
      sent_before += sent;
      __syncthreads();
    }
    if (threadIdx.x != 0) return;
    job.header[0] = kPayloadMagic;
    job.header[1] = job.id;
    job.header[2] = static_cast<uint32_t>(job.of.n);
    job.header[3] = state.count;
    for (int64_t i = job.chunk_count; i < job.starts_room; ++i) job.starts[i] = 0;
    tell_used(job.of.verdict, static_cast<int64_t>(reinterpret_cast<const std::byte*>(job.values + job.sent_room) -
                                                   reinterpret_cast<const std::byte*>(job.header)));
    if (job.carried_next == nullptr) return;
    const TopkOutcome outcome{state.found, state.bound, state.threshold, state.count, job.k};
    job.carried_next[0] = job.of.n == 0 ? 0 : next_topk_bound(outcome);
    job.carried_next[1] = state.steps + 1 < kTopkMostSteps ? state.steps + 1 : kTopkMostSteps;
    job.carried_next[2] = job.carried_next[3] = 0;
  }
};

// Writes the elements that a chunk sends, and corrects the errors of elements that the first pass misjudged.
struct Send {
  using Job = TopkJob;
  struct Shared {
    Places places;
    uint32_t sums[kWarps], more[kWarps];
  };

  static __device__ void run(const Job& job, uint32_t chunk) {
    GRADTUNE_SHARED(Shared, shared);
    const State& state = *job.state;
    clear_rest(job, chunk);
    if (!state.finite) {
      const int64_t end = int64_t{chunk + 1} * kChunk;
      for (int64_t i = end - kChunk + threadIdx.x; i < end && i < job.k; i += kThreads) {
        job.positions[i] = static_cast<uint16_t>(i % kChunk);
        job.values[i] = 0x7fc0;
      }
      return;
    }
    if (chunk >= job.chunk_count) return;
    const Chunk of = job.chunks[chunk];
    if (!job.of.add && is_pooled(job, of.ties > 0 ? state.threshold : state.threshold + 1)) {
      send_candidates(job, chunk, of, shared);
    } else {
      send_elements(job, chunk, of, shared);
    }
  }

 private:
  // Writes zeros behind the sent elements, by all chunks together.
  static __device__ __forceinline__ void clear_rest(const Job& job, uint32_t chunk) {
    const int64_t threads = int64_t{job.chunk_count > 0 ? job.chunk_count : 1} * kThreads;
    for (int64_t i = job.state->count + int64_t{chunk} * kThreads + threadIdx.x; i < job.sent_room; i += threads) {
      job.positions[i] = job.values[i] = 0;
    }
  }

  // Writes one element: its payload entry at `at` if it is sent, its error and its momentum.
  static __device__ __forceinline__ void settle(const Job& job, int64_t element, float p, bool is_sent, uint32_t at) {
    if (is_sent) {
      job.positions[at] = static_cast<uint16_t>(element % kChunk);
      job.values[at] = static_cast<uint16_t>(narrow_bf16(job.of.scale * p));
    }
    if (job.of.next != nullptr && job.of.add) {
      job.of.next[element] += is_sent ? error_of_sent(job, p) : error_of_unsent(job, p);
    }
    if (is_sent == (key_of(p) >= job.state->bound)) return;  // the first pass judged it right
    if (job.of.next != nullptr && !job.of.add) {
      job.of.next[element] = is_sent ? error_of_sent(job, p) : error_of_unsent(job, p);
    }
    if (job.momentum != nullptr) {
      const float kept = momentum_of(job.state->decay, job.momentum[element], job.of.gradient[element]);
      job.momentum_next[element] = is_sent ? 0.0F : kept;
    }
  }

  static __device__ __forceinline__ void send_candidates(const Job& job, uint32_t /*chunk*/, const Chunk& of,
                                                         Shared& shared) {
    const uint32_t threshold = job.state->threshold;
    uint32_t ties_before = 0, sent_before = of.sent_at;
    for (uint32_t first = 0; first < of.pool_count; first += kThreads) {
      const uint32_t i = first + threadIdx.x;
      Candidate candidate{0, 0};
      if (i < of.pool_count) candidate = job.pool[of.pool_at + i];
      const uint32_t key = key_of(candidate.value);
      const bool exists = i < of.pool_count, ties = exists && key == threshold;
      uint32_t all_ties, all_sent;
      const uint32_t tie = ties_before + exclusive_sum_of_block(ties ? 1 : 0, shared.sums, all_ties);
      const bool is_sent = exists && (key > threshold || (ties && tie < of.ties));
      const uint32_t at = sent_before + exclusive_sum_of_block(is_sent ? 1 : 0, shared.more, all_sent);
      if (exists) settle(job, candidate.index, candidate.value, is_sent, at);
      ties_before += all_ties;
      sent_before += all_sent;
      __syncthreads();
    }
  }

  static __device__ __forceinline__ void send_elements(const Job& job, uint32_t chunk, const Chunk& of,
                                                       Shared& shared) {
    const uint32_t threshold = job.state->threshold;
    const float decay = job.state->decay;
    const int64_t first = int64_t{chunk} * kChunk + threadIdx.x * 4;
    uint32_t own[kQuads] = {}, before[kQuads];
    const auto p_at = [&](int64_t i) { return i < job.of.n ? p_of(job, decay, i) : 0.0F; };
    for (int g = 0; g < kQuads; ++g) {
      for (int j = 0; j < 4; ++j) {
        const int64_t i = first + g * kStep + j;
        own[g] += i < job.of.n && key_of(p_at(i)) == threshold ? 1 : 0;
      }
    }
    find_places(own, shared.places, before);
    uint32_t ties_at[kQuads];
    for (int g = 0; g < kQuads; ++g) {
      ties_at[g] = before[g];
      uint32_t tie = before[g];
      own[g] = 0;
      for (int j = 0; j < 4; ++j) {
        const int64_t i = first + g * kStep + j;
        if (i >= job.of.n) continue;
        const uint32_t key = key_of(p_at(i));
        own[g] += key > threshold || (key == threshold && tie++ < of.ties) ? 1 : 0;
      }
    }
    __syncthreads();
    find_places(own, shared.places, before);
    for (int g = 0; g < kQuads; ++g) {
      uint32_t at = of.sent_at + before[g], tie = ties_at[g];
      for (int j = 0; j < 4; ++j) {
        const int64_t i = first + g * kStep + j;
        if (i >= job.of.n) continue;
        const float p = p_at(i);
        const bool is_sent = key_of(p) > threshold || (key_of(p) == threshold && tie++ < of.ties);
        settle(job, i, p, is_sent, at);
        at += is_sent ? 1 : 0;
      }
    }
  }
};

// --- Decode: a block of threads computes the sums of half a chunk in shared memory.
constexpr int kPiece = kChunk / 2;

struct DecodeTopk {
  struct Job {
    Sums sums;
    Frames frames;
    int64_t starts_at, positions_at, values_at;
    uint32_t chunks, k;
  };
  struct Shared {
    float sums[kPiece];
  };

  static __device__ void run(const Job& job, uint32_t block) {
    GRADTUNE_SHARED(Shared, shared);
    if (block == 0) check_frames(job.frames, job.sums);
    const uint32_t chunk = block / 2;
    if (chunk >= job.chunks) return;
    const Sums& sums = job.sums;
    const int64_t first = int64_t{chunk} * kChunk;
    const auto begin = static_cast<uint32_t>(block % 2 * kPiece);
    const auto length = static_cast<uint32_t>(sums.n - first < kChunk ? sums.n - first : kChunk);
    for (uint32_t i = threadIdx.x; i < kPiece; i += kThreads) {
      shared.sums[i] = sums.accumulate && begin + i < length ? sums.out[first + begin + i] : 0.0F;
    }
    __syncthreads();
    for (uint32_t p = 0; p < sums.count; ++p) {
      add_ascending(job, p, chunk, begin, length, shared);
      __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < kPiece && begin + i < length; i += kThreads) {
      __stcs(sums.out + first + begin + i, shared.sums[i]);
    }
  }

  static __device__ __forceinline__ void add_ascending(const Job& job, uint32_t p, uint32_t chunk, uint32_t begin,
                                                       uint32_t length, Shared& shared) {
    const std::byte* const payload = job.sums.payloads[p];
    const auto* const starts = reinterpret_cast<const uint32_t*>(payload + job.starts_at);
    const uint32_t count = reinterpret_cast<const uint32_t*>(payload)[3];
    const uint32_t from = starts[chunk], to = chunk + 1 < job.chunks ? starts[chunk + 1] : count;
    const auto* const positions = reinterpret_cast<const uint16_t*>(payload + job.positions_at);
    const auto* const values = reinterpret_cast<const uint16_t*>(payload + job.values_at);
    bool good = from <= to && to <= job.k && (chunk > 0 || from == 0);
    for (uint32_t i = from + threadIdx.x; good && i < to; i += kThreads) {
      const uint32_t position = positions[i];
      good = position < length && (i == from || positions[i - 1] < position);
      // Positions ascend, so only one thread adds to each sum. If they do not ascend, the payload is rejected and the
      // sums do not matter.
      if (good && begin <= position && position < begin + kPiece)
        shared.sums[position - begin] += widen_bf16(values[i]);
    }
    if (!good) tell_rejected(job.sums.verdict, job.sums.first + p);
  }
};

class TopK final : public DeviceCompressor {
 public:
  explicit TopK(std::unique_ptr<Compressor> host)
      : DeviceCompressor(std::move(host)), member_(topk_member_of(spec())) {}

  int64_t scratch_bytes(const core::Extent& extent) const override {
    const TopkLayout layout(spec(), extent.numel);
    return pool_at(layout) + pool_size(extent.numel, layout) * static_cast<int64_t>(sizeof(Candidate));
  }

 private:
  static constexpr int64_t kBinsAt = section_bytes(sizeof(State)), kChunksAt = kBinsAt + kBins * 4;
  static int64_t pool_at(const TopkLayout& layout) {
    return kChunksAt + section_bytes(layout.blocks * static_cast<int64_t>(sizeof(Chunk)));
  }
  static int64_t pool_size(int64_t n, const TopkLayout& layout) { return std::min(n, 4 * layout.k + 4096); }

  TopkJob job_of(const Encode& job) const {
    const auto n = static_cast<int64_t>(job.gradient.size());
    const TopkLayout layout(spec(), n);
    std::byte* const payload = job.payload.data();
    std::byte* const scratch = job.scratch.data();
    TopkJob made{.of = elements_of(job),
                 .momentum = nullptr,
                 .momentum_next = nullptr,
                 .carried = nullptr,
                 .carried_next = nullptr,
                 .header = reinterpret_cast<uint32_t*>(payload),
                 .starts = reinterpret_cast<uint32_t*>(payload + layout.starts_at),
                 .positions = reinterpret_cast<uint16_t*>(payload + layout.positions_at),
                 .values = reinterpret_cast<uint16_t*>(payload + layout.values_at),
                 .state = reinterpret_cast<State*>(scratch),
                 .chunks = reinterpret_cast<Chunk*>(scratch + kChunksAt),
                 .bins = reinterpret_cast<uint32_t*>(scratch + kBinsAt),
                 .pool = reinterpret_cast<Candidate*>(scratch + pool_at(layout)),
                 .pool_size = static_cast<uint32_t>(pool_size(n, layout)),
                 .k = static_cast<uint32_t>(layout.k),
                 .chunk_count = static_cast<uint32_t>(layout.blocks),
                 .id = member_.id,
                 .starts_room = (layout.positions_at - layout.starts_at) / 4,
                 .sent_room = (layout.values_at - layout.positions_at) / 2};
    if (member_.carries_bound && job.work.state != nullptr) {
      made.carried = reinterpret_cast<const uint32_t*>(job.work.state);
      made.carried_next = reinterpret_cast<uint32_t*>(job.work.state_next);
      if (member_.has_momentum) {
        made.momentum = reinterpret_cast<const float*>(job.work.state + kTopkMomentumAt);
        made.momentum_next = reinterpret_cast<float*>(job.work.state_next + kTopkMomentumAt);
      }
    }
    return made;
  }

  template <class Kernel>
  void by_chunks(std::span<const Encode> jobs, Queue& queue, int64_t at_least = 0) const {
    Launches<Kernel> launches(queue);
    for (const Encode& job : jobs) {
      const TopkJob made = job_of(job);
      launches.add(made, std::max<int64_t>(at_least, made.chunk_count));
    }
    launches.finish();
  }
  template <class Kernel>
  void by_one(std::span<const Encode> jobs, Queue& queue) const {
    Launches<Kernel> launches(queue);
    for (const Encode& job : jobs) launches.add(job_of(job), 1);
    launches.finish();
  }

  void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const override {
    by_one<Begin>(jobs, queue);
    by_chunks<Collect<false>>(jobs, queue);
    if (member_.carries_bound) {
      by_one<Check>(jobs, queue);
      by_chunks<Collect<true>>(jobs, queue);
    }
    by_one<Decide>(jobs, queue);
    by_chunks<CountDigits<0>>(jobs, queue);
    by_one<PickDigit<0>>(jobs, queue);
    by_chunks<CountDigits<1>>(jobs, queue);
    by_one<PickDigit<1>>(jobs, queue);
    by_chunks<CountDigits<2>>(jobs, queue);
    by_one<PickDigit<2>>(jobs, queue);
    by_chunks<CountSent>(jobs, queue);
    by_one<Divide>(jobs, queue);
    by_chunks<Send>(jobs, queue, 1);
  }

  void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const override {
    decode_by<DecodeTopk>(
        jobs, queue,
        [&](const Decode& job, const Sums& sums) -> DecodeTopk::Job {
          const TopkLayout layout(spec(), static_cast<int64_t>(job.out.size()));
          const auto k = static_cast<uint32_t>(layout.k);
          return {.sums = sums,
                  .frames = {member_.id, static_cast<uint32_t>(sums.n), member_.carries_bound ? 0 : k, k},
                  .starts_at = layout.starts_at,
                  .positions_at = layout.positions_at,
                  .values_at = layout.values_at,
                  .chunks = static_cast<uint32_t>(layout.blocks),
                  .k = k};
        },
        [&](const Decode& job) {
          return std::max<int64_t>(1, 2 * TopkLayout(spec(), static_cast<int64_t>(job.out.size())).blocks);
        });
  }

  TopkMember member_;
};

}  // namespace

std::unique_ptr<Compressor> topk(std::unique_ptr<Compressor> host) { return std::make_unique<TopK>(std::move(host)); }

}  // namespace gradtune::compress::cuda
