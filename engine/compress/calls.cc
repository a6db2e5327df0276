// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/calls.h"

namespace gradtune::compress {

bool encode_now(const Compressor& compressor, Encode job, HostQueue& queue) {
  Verdict verdict;
  job.verdict = &verdict;
  compressor.encode(job, queue);
  return verdict.nonfinite == 0;
}

core::Status decode_now(const Compressor& compressor, Decode job, HostQueue& queue) {
  Verdict verdict;
  job.verdict = &verdict;
  compressor.decode(job, queue);
  if (verdict.rejected > 0) return compressor.defect(job, verdict.rejected - 1);
  return {};
}

}  // namespace gradtune::compress
