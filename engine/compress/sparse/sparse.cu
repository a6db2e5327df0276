// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `rows`, `coo` and `blocks` on a device, for gradients that are laid out in full. The first launch finds the units
// to keep. Then a block of threads counts them and chooses the form. The last launch writes, and reads only the sent
// units again. Decode reads the sent values, and finds its place in a list of positions by searching.
//
// A block of threads processes a tile of units with about 8192 elements. In decode a tile has 4096 elements, whose
// sums are in shared memory. A unit that is wider than that has several tiles in decode.
#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/sparse/sparse_units.cuh"

namespace gradtune::compress::cuda {
namespace {

constexpr int kTile = kBlockElements, kSumTile = 4096;  // elements
constexpr uint32_t kFewestUnits = 8;                    // whose bits are a byte of their own

// The result of the search.
struct State {
  SparseLayout layout;
  int64_t count;
};

struct EncodeJob {
  Elements of;
  Tiling tiling;
  std::byte* payload;
  State* state;
  uint32_t* tiles;  // number of kept units in each tile, later before it
  uint8_t* bits;
  uint32_t id, tile_count;
};

// Finds the kept units and counts them by tile, for jobs with units of that width.
template <Width kWidth>
struct MarkUnits {
  using Job = EncodeJob;
  static_assert(kTile / 32 <= kThreads);
  struct Shared {
    uint32_t there[kTile / 32];
    uint32_t sums[kWarps];
  };

  static __device__ void run(const Job& job, uint32_t tile) {
    GRADTUNE_SHARED(Shared, shared);
    const Tiling& tiling = job.tiling;
    const int64_t first = tiling.first_of(tile);
    mark_units<kWidth>(tiling, first, {job.of.gradient, job.of.residual}, shared.there);
    const uint32_t bits = threadIdx.x * 32 < tiling.tile ? shared.there[threadIdx.x] : 0;
    uint32_t total;
    (void)exclusive_sum_of_block(static_cast<uint32_t>(__popc(bits)), shared.sums, total);
    if (threadIdx.x == 0 && tile < job.tile_count) job.tiles[tile] = total;
    if (tiling.tile < 32) {
      if (threadIdx.x * 8 < tiling.tile)
        job.bits[first / 8 + threadIdx.x] = static_cast<uint8_t>(shared.there[0] >> 8 * threadIdx.x);
    } else if (threadIdx.x * 32 < tiling.tile && first + threadIdx.x * 32 < tiling.shape.words() * 64) {
      reinterpret_cast<uint32_t*>(job.bits)[first / 32 + threadIdx.x] = bits;
    }
  }
};

// Computes where the units of each tile go and chooses the form. Writes all of the payload except index and values.
// One block of threads.
struct WriteFrame {
  using Job = EncodeJob;
  struct Shared {
    uint32_t sums[kWarps];
  };

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    GRADTUNE_SHARED(Shared, shared);
    uint32_t before = 0;
    for (uint32_t first = 0; first < job.tile_count; first += kThreads) {
      const uint32_t tile = first + threadIdx.x;
      const uint32_t count = tile < job.tile_count ? job.tiles[tile] : 0;
      uint32_t total;
      const uint32_t sum = exclusive_sum_of_block(count, shared.sums, total);
      if (tile < job.tile_count) job.tiles[tile] = before + sum;
      before += total;
      __syncthreads();
    }
    if (threadIdx.x != 0) return;
    const SparseShape& shape = job.tiling.shape;
    const int64_t last = shape.units - 1;
    const bool has_last = shape.units > 0 && (job.bits[last / 8] >> last % 8 & 1) != 0;
    const SparseLayout layout = choose_layout(shape, before, has_last);
    *job.state = {layout, before};
    auto* const header = reinterpret_cast<uint32_t*>(job.payload);
    header[0] = kPayloadMagic;
    header[1] = job.id;
    header[2] = static_cast<uint32_t>(shape.n);
    header[3] = static_cast<uint32_t>(layout.bytes / kUsedUnit);
    header[4] = before;
    header[5] = static_cast<uint32_t>(layout.form);
    header[6] = static_cast<uint32_t>(shape.width);
    header[7] = 0;
    const auto zero = [&](int64_t begin, int64_t end) {
      for (; begin < end; ++begin) job.payload[begin] = std::byte{0};
    };
    zero(layout.starts_at + layout.starts_bytes, layout.index_at);
    zero(layout.index_at + layout.index_bytes, layout.values_at);
    zero(layout.values_at + layout.values_bytes, layout.bytes);
    tell_used(job.of.verdict, layout.bytes);
  }
};

// Writes index, values, and errors, which are zero.
struct WriteUnits {
  using Job = EncodeJob;
  using Shared = Listed<kTile>;

  static __device__ void run(const Job& job, uint32_t block) {
    GRADTUNE_SHARED(Shared, listed);
    const int64_t first = int64_t{block} * kTile;
    const bool is_whole = job.of.aligned && first + kTile <= job.of.n;
    if (job.of.next != nullptr && !job.of.add) {
      is_whole ? clear<true>(job.of, first) : clear<false>(job.of, first);
    }
    bool is_good = true;
    if (job.state->layout.form != SparseForm::dense) {
      if (block < job.tile_count) is_good = write_there(job, block, listed);
    } else {
      is_good = is_whole ? write_all<true>(job, first) : write_all<false>(job, first);
    }
    if (__syncthreads_or(is_good ? 0 : 1) != 0 && threadIdx.x == 0) tell_nonfinite(job.of.verdict);
  }

 private:
  static constexpr int kQuads = 4, kStep = kThreads * 4, kSteps = kTile / (kQuads * kStep);

  template <bool kWhole>
  static __device__ __forceinline__ void clear(const Elements& of, int64_t first) {
#pragma unroll
    for (int g = 0; g < kQuads * kSteps; ++g) {
      store<kWhole>(Quad{}, of.next, first + g * kStep + threadIdx.x * 4, of.n);
    }
  }

  template <bool kWhole>
  static __device__ __forceinline__ bool write_all(const Job& job, int64_t first) {
    auto* const values = reinterpret_cast<float*>(job.payload + job.state->layout.values_at);
    bool is_good = true;
    for (int step = 0; step < kSteps; ++step) {
      const int64_t at = first + step * kQuads * kStep + threadIdx.x * 4;
      Quad p[kQuads];
      load_p<kWhole>(job.of, at, kStep, p);
#pragma unroll
      for (int g = 0; g < kQuads; ++g) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          p[g].at[j] = job.of.scale * p[g].at[j];
          is_good &= is_finite(p[g].at[j]);
        }
        store<kWhole>(p[g], values, at + g * kStep, job.of.n);
      }
    }
    return is_good;
  }

  static __device__ __forceinline__ bool write_there(const Job& job, uint32_t tile, Shared& listed) {
    const Tiling& tiling = job.tiling;
    const SparseLayout& layout = job.state->layout;
    const int64_t first = tiling.first_of(tile), run = (first + tiling.run - 1) / tiling.run;
    const auto limit =
        static_cast<uint32_t>(run * tiling.run - first);  // offset of the first run that begins in the tile
    const auto* const words = reinterpret_cast<const uint32_t*>(job.bits);
    const Found found = list_units(tiling, first, limit, listed, [&](int64_t unit) { return words[unit / 32]; });
    const uint32_t before = job.tiles[tile];
    if (layout.form == SparseForm::list) {
      auto* const list = reinterpret_cast<uint32_t*>(job.payload + layout.index_at) + before;
      for (uint32_t i = threadIdx.x; i < found.count; i += kThreads) {
        list[i] = static_cast<uint32_t>(first + listed.units[i]);
      }
    } else {
      if (threadIdx.x == 0 && limit < tiling.tile && run * tiling.run < tiling.shape.units) {
        reinterpret_cast<uint32_t*>(job.payload + layout.starts_at)[run] = before + found.before;
      }
      auto* const index = reinterpret_cast<uint8_t*>(job.payload + layout.index_at);
      const int64_t end = tile + 1 == job.tile_count ? layout.index_bytes : (first + tiling.tile) / 8;
      for (int64_t i = first / 8 + threadIdx.x; i < end; i += kThreads) index[i] = job.bits[i];
    }
    const auto width = static_cast<uint32_t>(tiling.shape.width);
    const Source source = Source{job.of.gradient, job.of.residual}.from(first * width);
    float* const values = reinterpret_cast<float*>(job.payload + layout.values_at) + int64_t{before} * width;
    bool is_good = true;
    for_elements(
        tiling, first, found.count, 0, width, listed, source, [](const Part& part) { return part.at; },
        [&](const Part& part, float p) {
          const float sent = job.of.scale * p;
          is_good &= is_finite(sent);
          values[int64_t{part.rank} * width + part.offset] = sent;
        });
    return is_good;
  }
};

// --- Decode.

// The data that a tile needs of a payload.
struct Opened {
  SparseForm form;
  bool is_good;
  uint32_t from;   // number of kept units before the tile
  uint32_t count;  // of the tile; for a bitmap of the whole payload without its last unit
  int64_t index_at, values_at;
};

struct DecodeJob {
  Sums sums;
  Frames frames;
  Tiling tiling;
  uint32_t tiles, pieces;  // tiles of units; pieces of each of them, if a unit is wider than a tile
};

struct AddUnits {
  using Job = DecodeJob;
  struct Shared {
    float sums[kSumTile];
    Listed<kSumTile> listed;
    Opened opened[kMostPayloads];
  };

  static __device__ void run(const Job& job, uint32_t block) {
    GRADTUNE_SHARED(Shared, shared);
    const Tiling& tiling = job.tiling;
    const SparseShape& shape = tiling.shape;
    const Sums& sums = job.sums;
    const int64_t first = tiling.first_of(block / job.pieces);
    for (uint32_t p = warp_of_block(); p < sums.count; p += kWarps) {
      const Opened opened = open(job, sums.payloads[p], first);
      if (lane_of_warp() == 0) shared.opened[p] = opened;
    }
    const uint32_t begin = block % job.pieces * kSumTile;  // of each unit
    const int64_t at = first * shape.width + begin, left = shape.n - at;
    const int64_t end = shape.width - begin < kSumTile ? shape.width : int64_t{begin} + kSumTile;
    const int64_t own = job.pieces > 1 ? end - begin : tiling.tile * shape.width;
    const auto length = static_cast<uint32_t>(left < 0 ? 0 : left < own ? left : own);
    float* const out = sums.out + at;
    for (uint32_t i = threadIdx.x; i < length; i += kThreads) shared.sums[i] = sums.accumulate ? out[i] : 0.0F;
    __syncthreads();
    for (uint32_t p = 0; p < sums.count; ++p) {
      const Opened opened = shared.opened[p];
      bool is_good = opened.is_good;
      if (is_good && opened.form == SparseForm::dense) {
        add_all(part_of<float>(sums.payloads[p], opened.values_at) + at, length, shared);
      } else if (is_good) {
        const uint32_t count = list(job, p, first, opened, shared, is_good);
        if (is_good) {
          const auto width = static_cast<uint32_t>(shape.width);
          const auto* const values = part_of<float>(sums.payloads[p], opened.values_at) + int64_t{opened.from} * width;
          for_elements(
              tiling, first, count, begin, static_cast<uint32_t>(end), shared.listed, {values, nullptr},
              [&](const Part& part) { return part.rank * width + part.offset; },
              [&](const Part& part, float value) { shared.sums[part.at - begin] += value; });
        }
      }
      if (!is_good && threadIdx.x == 0) tell_rejected(sums.verdict, sums.first + p);
      __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < length; i += kThreads) __stcs(out + i, shared.sums[i]);
  }

 private:
  template <class T>
  static __device__ __forceinline__ const T* part_of(const std::byte* payload, int64_t at) {
    return reinterpret_cast<const T*>(payload + at);
  }

  // Adds the values of a payload that has all units.
  static __device__ __forceinline__ void add_all(const float* values, uint32_t length, Shared& shared) {
    for (uint32_t first = threadIdx.x; first < length; first += kThreads * kAhead) {
      float value[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const uint32_t i = first + a * kThreads;
        value[a] = i < length ? values[i] : 0.0F;
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const uint32_t i = first + a * kThreads;
        if (i < length) shared.sums[i] += value[a];
      }
    }
  }

  // Checks the parts of a payload that belong to no tile (defect_of_sparse), and finds its units of the tile. Called
  // by a warp.
  static __device__ __forceinline__ Opened open(const Job& job, const std::byte* payload, int64_t first) {
    const SparseShape& shape = job.tiling.shape;
    const Frames& frames = job.frames;
    const auto* const header = part_of<uint32_t>(payload, 0);
    const uint32_t count = header[4];
    Opened opened{static_cast<SparseForm>(header[5]), false, 0, 0, 0, 0};
    if (header[0] != kPayloadMagic || header[1] != frames.compressor || header[2] != frames.n) return opened;
    if (header[3] < frames.least || header[3] > frames.most || header[6] != shape.width) return opened;
    if (opened.form > SparseForm::bitmap || count > shape.units) return opened;
    const SparseLayout guess = sparse_layout(opened.form, shape, count, false);
    if (guess.values_at > int64_t{frames.most} * kUsedUnit) return opened;
    opened.index_at = guess.index_at;
    opened.values_at = guess.values_at;
    const auto* const index = part_of<uint32_t>(payload, guess.index_at);
    const int64_t end = first + job.tiling.tile;
    bool has_last = false;
    if (opened.form == SparseForm::dense) {
      opened.from = static_cast<uint32_t>(first);
    } else if (opened.form == SparseForm::list) {
      has_last = count > 0 && index[count - 1] == shape.units - 1;
      opened.from = lower_bound(index, count, first);
      opened.count = (end < shape.units ? lower_bound(index, count, end) : count) - opened.from;
    } else if (shape.units > 0) {
      const auto* const starts = part_of<uint32_t>(payload, guess.starts_at);
      const int64_t run = first / job.tiling.run, last = shape.units - 1;
      // Rejects bits behind those of the units.
      const uint32_t word = index[last / 32];
      if ((last % 32 < 31 && word >> (last % 32 + 1) != 0) || (last / 32 % 2 == 0 && index[last / 32 + 1] != 0)) {
        return opened;
      }
      if (starts[0] != 0) return opened;
      has_last = (word >> last % 32 & 1) != 0;
      opened.from = starts[run] + count_bits(index, run * job.tiling.run, first);
      opened.count = count - (has_last ? 1 : 0);
    }
    const SparseLayout layout = sparse_layout(opened.form, shape, count, has_last);
    opened.is_good = layout.bytes == int64_t{header[3]} * kUsedUnit;
    return opened;
  }

  // The index of the first position that is not below the target, if positions ascend. Otherwise it returns a number
  // that ascends with the target, so that every position still belongs to exactly one tile. Called by a warp.
  static __device__ __forceinline__ uint32_t lower_bound(const uint32_t* list, uint32_t count, int64_t target) {
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t step = (high - low + 31) / 32, at = low + lane_of_warp() * step;
      const bool is_below = at < high && list[at] < target;
      const uint32_t above = ~__ballot_sync(kAllLanes, is_below ? 1 : 0);
      const int passed = above == 0 ? 32 : __ffs(static_cast<int>(above)) - 1;
      if (passed == 0) break;
      const int64_t end = low + passed * step;
      high = end < high ? end : high;
      low = end - step + 1;
    }
    return static_cast<uint32_t>(low);
  }

  // Counts the bits of [begin, end); `begin` is a multiple of 32. Called by a warp.
  static __device__ __forceinline__ uint32_t count_bits(const uint32_t* words, int64_t begin, int64_t end) {
    uint32_t count = 0;
    for (int64_t word = begin / 32 + lane_of_warp(); word * 32 < end; word += 32) {
      const int64_t left = end - word * 32;
      const uint32_t kept = left < 32 ? words[word] & ((1U << left) - 1) : words[word];
      count += static_cast<uint32_t>(__popc(kept));
    }
    return __reduce_add_sync(kAllLanes, count);
  }

  // Lists the units of the tile that a payload has, if it has not all, and checks them. All threads of the block call
  // it.
  static __device__ __forceinline__ uint32_t list(const Job& job, uint32_t p, int64_t first, const Opened& opened,
                                                  Shared& shared, bool& is_good) {
    const Tiling& tiling = job.tiling;
    const SparseShape& shape = tiling.shape;
    const std::byte* const payload = job.sums.payloads[p];
    const auto* const index = part_of<uint32_t>(payload, opened.index_at);
    if (opened.form == SparseForm::list) {
      is_good = opened.count <= tiling.tile;
      for (uint32_t i = threadIdx.x; is_good && i < opened.count; i += kThreads) {
        const uint32_t at = opened.from + i;
        const int64_t unit = int64_t{index[at]} - first;
        is_good =
            0 <= unit && unit < tiling.tile && unit < shape.units - first && (at == 0 || index[at - 1] < index[at]);
        if (is_good) shared.listed.units[i] = static_cast<uint16_t>(unit);
      }
      is_good = __syncthreads_or(is_good ? 0 : 1) == 0;
      return opened.count;
    }
    // The number of bits of a run is checked at the start of the next run, and at the end.
    const int64_t next = first / tiling.run + 1, limit = next * tiling.run - first;
    const bool has_limit = limit <= tiling.tile && next * tiling.run < shape.units;
    const Found found = list_units(tiling, first, has_limit ? static_cast<uint32_t>(limit) : tiling.tile, shared.listed,
                                   [&](int64_t unit) { return index[unit / 32]; });
    const auto* const starts = part_of<uint32_t>(payload, kSparseHeaderBytes);
    const uint32_t all = part_of<uint32_t>(payload, 0)[4];
    if (has_limit) is_good = starts[next] == opened.from + found.before;
    if (first + tiling.tile >= shape.units) {
      is_good = is_good && found.count <= all && opened.from == all - found.count;
    } else {
      is_good = is_good && opened.from <= opened.count && found.count <= opened.count - opened.from;
    }
    return found.count;
  }
};

template <Grain kGrain>
class Sparse final : public DeviceCompressor {
 public:
  using DeviceCompressor::DeviceCompressor;

  int64_t scratch_bytes(const core::Extent& extent) const override {
    return kTilesAt + tiles_bytes(extent.numel) + section_bytes(SparseShape(extent.numel, 1).words() * 8);
  }

 private:
  // Scratch holds the result of the search, the counts of tiles, and bits.
  static constexpr int64_t kTilesAt = section_bytes(sizeof(State));
  // A tile has more than half of kTile elements, or more than kTile.
  static constexpr int64_t tiles_bytes(int64_t n) { return section_bytes((2 * n / kTile + 2) * 4); }

  SparseShape shape_of(int64_t n, const Work& work) const {
    return SparseShape(n, unit_width(kGrain, spec(), work.row));
  }

  EncodeJob job_of(const Encode& job) const {
    const auto n = static_cast<int64_t>(job.gradient.size());
    const Tiling tiling = tiling_of(shape_of(n, job.work), kTile, kFewestUnits);
    std::byte* const scratch = job.scratch.data();
    return {.of = elements_of(job),
            .tiling = tiling,
            .payload = job.payload.data(),
            .state = reinterpret_cast<State*>(scratch),
            .tiles = reinterpret_cast<uint32_t*>(scratch + kTilesAt),
            .bits = reinterpret_cast<uint8_t*>(scratch + kTilesAt + tiles_bytes(n)),
            .id = sparse_id(kGrain),
            .tile_count = static_cast<uint32_t>(blocks_of(tiling.shape.units, tiling.tile))};
  }

  void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const override {
    const auto launch = [&]<class Kernel>(const Kernel&, const auto& blocks) {
      Launches<Kernel> launches(queue);
      for (const Encode& job : jobs) {
        const EncodeJob made = job_of(job);
        launches.add(made, blocks(made));
      }
      launches.finish();
    };
    const auto mark = [&]<Width kWidth>(const MarkUnits<kWidth>& kernel) {
      launch(kernel, [](const EncodeJob& job) {
        const Tiling& tiling = job.tiling;
        return tiling.width == kWidth ? blocks_of(tiling.shape.words() * 64, tiling.tile) : 0;
      });
    };
    mark(MarkUnits<Width::one>());
    mark(MarkUnits<Width::narrow>());
    mark(MarkUnits<Width::wide>());
    launch(WriteFrame(), [](const EncodeJob&) { return int64_t{1}; });
    launch(WriteUnits(),
           [](const EncodeJob& job) { return std::max<int64_t>(job.tile_count, blocks_of(job.of.n, kTile)); });
  }

  void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const override {
    const auto job_of = [&](const Decode& job, const Sums& sums) -> DecodeJob {
      const Tiling tiling = tiling_of(shape_of(static_cast<int64_t>(job.out.size()), job.work), kSumTile, 1);
      return {.sums = sums,
              .frames = {sparse_id(kGrain), static_cast<uint32_t>(tiling.shape.n),
                         static_cast<uint32_t>(kSparseHeaderBytes / kUsedUnit),
                         static_cast<uint32_t>(sparse_payload_bytes(tiling.shape.n) / kUsedUnit)},
              .tiling = tiling,
              .tiles = static_cast<uint32_t>(blocks_of(tiling.shape.units, tiling.tile)),
              .pieces = static_cast<uint32_t>(blocks_of(tiling.tile * tiling.shape.width, kSumTile))};
    };
    decode_by<AddUnits>(jobs, queue, job_of, [&](const Decode& job) {
      const DecodeJob made = job_of(job, sums_of(job, 0));
      return std::max<int64_t>(1, int64_t{made.tiles} * made.pieces);
    });
  }
};

}  // namespace

std::unique_ptr<Compressor> rows(std::unique_ptr<Compressor> host) {
  return std::make_unique<Sparse<Grain::row>>(std::move(host));
}
std::unique_ptr<Compressor> coo(std::unique_ptr<Compressor> host) {
  return std::make_unique<Sparse<Grain::element>>(std::move(host));
}
std::unique_ptr<Compressor> blocks(std::unique_ptr<Compressor> host) {
  return std::make_unique<Sparse<Grain::block>>(std::move(host));
}

}  // namespace gradtune::compress::cuda
