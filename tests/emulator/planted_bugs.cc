// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/planted_bugs.h"

#include "tests/emulator/cuda.h"

namespace gradtune::emulator {
namespace {

using Words = uint32_t[kPlantedThreads];
struct Bins {
  uint32_t at[32];
};

void missing_barrier(uint32_t* out) {
  GRADTUNE_SHARED(Words, tile);
  tile[threadIdx.x] = threadIdx.x * 3;
  out[threadIdx.x] = tile[(threadIdx.x + 1) % 64];
}
void missing_syncwarp(uint32_t* out) {
  GRADTUNE_SHARED(Words, tile);
  tile[threadIdx.x] = threadIdx.x * 3;
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
  __syncwarp();
}
void syncwarp_instead_of_barrier(uint32_t* out) {
  GRADTUNE_SHARED(Words, tile);
  tile[threadIdx.x] = threadIdx.x * 3;
  __syncwarp();
  out[threadIdx.x] = tile[63 - threadIdx.x];
}
void tile_used_again_too_early(uint32_t* out) {
  GRADTUNE_SHARED(Words, tile);
  for (unsigned i = 0; i < 2; ++i) {
    tile[threadIdx.x] = threadIdx.x + i;
    __syncthreads();
    out[threadIdx.x] = tile[(threadIdx.x + 33) % 64];
  }
}
void shared_memory_not_cleared(uint32_t* out) {
  GRADTUNE_SHARED(Bins, bins);
  atomicAdd(&bins.at[threadIdx.x / 2], 1U);
  __syncthreads();
  out[64 * blockIdx.x + threadIdx.x] = bins.at[threadIdx.x / 2];  // 2, if they were zeros
}
void barrier_in_a_branch(uint32_t* /*out*/) {
  if (threadIdx.x < 32) __syncthreads();
}
void barriers_in_both_branches(uint32_t* /*out*/) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
void return_before_a_barrier(uint32_t* /*out*/) {
  if (threadIdx.x == 63) return;
  __syncthreads();
}
void shuffle_in_a_branch(uint32_t* out) {
  if (threadIdx.x % 2 == 1) out[threadIdx.x] = __shfl_xor_sync(~0U, threadIdx.x, 1);
}
void lane_outside_of_the_mask(uint32_t* out) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffU, threadIdx.x, 16);
}
void not_in_its_own_mask(uint32_t* /*out*/) { __syncwarp(0xffffU); }
void too_much_shared_memory(uint32_t* out) {
  struct Large {
    uint32_t words[13000];
  };
  GRADTUNE_SHARED(Large, large);
  out[threadIdx.x] = large.words[threadIdx.x];
}
void blocks_write_one_word(uint32_t* out) {
  if (threadIdx.x == 0) out[0] = blockIdx.x;
}
void counter_without_atomic(uint32_t* out) { out[0] += 1; }
void warps_write_one_word(uint32_t* out) {
  if (threadIdx.x % 32 == 0) out[0] = 7;
}
void block_reads_what_another_wrote(uint32_t* out) {
  if (threadIdx.x == 0) out[blockIdx.x] = out[blockIdx.x + 1] == 0xffff ? 1 : 2;
}
void wide_load_that_is_not_aligned(uint32_t* out) {
  const uint4 four = __ldcs(reinterpret_cast<const uint4*>(out + 1));
  out[threadIdx.x] = four.x;
}
void wide_store_that_is_not_aligned(uint32_t* out) {
  __stcs(reinterpret_cast<uint2*>(out + 2 * threadIdx.x + 1), make_uint2(1, 2));
}

// No bugs.
void counter_with_atomic(uint32_t* out) { atomicAdd(out, 1U); }
void wide_accesses(uint32_t* out) {
  uint4 four = __ldcs(reinterpret_cast<const uint4*>(out) + threadIdx.x);
  four.w = threadIdx.x;
  __stcs(reinterpret_cast<uint4*>(out) + threadIdx.x, four);
}
void neighbours(uint32_t* out) {
  GRADTUNE_SHARED(Words, tile);
  for (unsigned i = 0; i < 3; ++i) {
    tile[threadIdx.x] = threadIdx.x + i;
    __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] += tile[(threadIdx.x + 33) % 64];
    __syncthreads();
  }
}
void warp_sums(uint32_t* out) {
  uint32_t sum = threadIdx.x;
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0U, sum, by);
  if (threadIdx.x % 32 < 16) sum += __reduce_max_sync(0xffffU, threadIdx.x);
  const uint32_t below = __ballot_sync(~0U, threadIdx.x % 3 == 0 ? 1 : 0);
  out[blockIdx.x * 64 + threadIdx.x] = sum + below;
}

constexpr Planted kBugs[] = {
    {"missing barrier", missing_barrier, 1, Shown::by_results, "", true},
    {"missing __syncwarp", missing_syncwarp, 1, Shown::by_results, "", true},
    {"__syncwarp instead of a barrier", syncwarp_instead_of_barrier, 1, Shown::by_results, "", true},
    {"a tile that is used again too early", tile_used_again_too_early, 1, Shown::by_race, "", true},
    {"shared memory that is not cleared", shared_memory_not_cleared, 2, Shown::by_value, "", false},
    {"a barrier in a branch", barrier_in_a_branch, 1, Shown::by_error, "waits for ever at", false},
    {"barriers in both branches", barriers_in_both_branches, 1, Shown::by_error, "threads of a block meet in different",
     false},
    {"a return before a barrier", return_before_a_barrier, 1, Shown::by_error, "1 of 64 threads have ended", false},
    {"a shuffle in a branch", shuffle_in_a_branch, 1, Shown::by_error, "waits for ever at", false},
    {"a lane outside of the mask", lane_outside_of_the_mask, 1, Shown::by_error, "takes from a lane that is not in",
     false},
    {"not in its own mask", not_in_its_own_mask, 1, Shown::by_error, "is not in its own mask", false},
    {"too much shared memory", too_much_shared_memory, 1, Shown::by_error, "more than 48 KiB", false},
    {"blocks that write one word", blocks_write_one_word, 4, Shown::by_results, "", true},
    {"a counter without atomic", counter_without_atomic, 1, Shown::by_race, "", true},
    {"warps that write one word", warps_write_one_word, 1, Shown::by_race, "", true},
    {"a block that reads what another writes", block_reads_what_another_wrote, 4, Shown::by_race, "", true},
    {"a wide load that is not aligned", wide_load_that_is_not_aligned, 1, Shown::by_error,
     "16 bytes at once that are not aligned at", false},
    {"a wide store that is not aligned", wide_store_that_is_not_aligned, 1, Shown::by_error,
     "8 bytes at once that are not aligned at", false},
    {"no bug: wide accesses", wide_accesses, 1, Shown::by_nothing, "", false},
    {"no bug: a counter", counter_with_atomic, 4, Shown::by_nothing, "", false},
    {"no bug: neighbours", neighbours, 3, Shown::by_nothing, "", false},
    {"no bug: sums of warps", warp_sums, 3, Shown::by_nothing, "", false},
};

}  // namespace

std::span<const Planted> planted_bugs() { return kBugs; }

}  // namespace gradtune::emulator
