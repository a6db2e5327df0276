// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/cuda/device_compressor.h"

#include "engine/compress/cuda/elements.cuh"

namespace gradtune::compress::cuda {
namespace {

struct Rejecting {
  struct Job {
    Verdict* verdict;
    uint64_t position;
  };
  static __device__ void run(const Job& job, uint32_t /*block*/) {
    if (threadIdx.x == 0) tell_rejected(job.verdict, static_cast<uint32_t>(job.position));
  }
};

}  // namespace

void enqueue_rejection(Verdict* verdict, size_t position, Queue& queue) {
  Launches<Rejecting> launches(queue);
  launches.add({verdict, position}, 1);
  launches.finish();
}

void DeviceCompressor::encode_all(std::span<const Encode> jobs, Queue& queue) const {
  for (const Encode& job : jobs) check_encode(*this, job);
  enqueue_encode(jobs, queue);
}

void DeviceCompressor::decode_all(std::span<const Decode> jobs, Queue& queue) const {
  size_t good = 0;  // jobs before this one, that no kernel was launched for yet
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Decode& job = jobs[i];
    core::check(job.verdict != nullptr, "a call has somewhere to tell what it found");
    const core::Extent extent{static_cast<int64_t>(job.out.size()), job.work.matrices};
    const Rejected bad = check_sizes(job.payloads, payload_bytes(extent, job.work.round));
    if (!bad) {
      for (const std::span<const std::byte>& payload : job.payloads) {
        core::check(traits().summable || is_aligned(payload.data()), "payloads are 16-byte aligned");
      }
      continue;
    }
    enqueue_decode(jobs.subspan(good, i - good), queue);
    enqueue_rejection(job.verdict, bad->position, queue);
    good = i + 1;
  }
  if (good < jobs.size()) enqueue_decode(jobs.subspan(good), queue);
}

}  // namespace gradtune::compress::cuda
