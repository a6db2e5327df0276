// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/balance.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/exec/device.h"

namespace gradtune::exec {
namespace {

void find(const TotalOf& job, const BucketMemory& memory, compress::Queue& queue) {
  queue.space() == core::Space::host ? find_total(job) : memory.device->kernels()->find_total(job, queue);
}

// True if this rank keeps the error, in the next residual itself and not in a copy of it.
bool keeps_at_home(const Encode& encode) {
  return encode.bank && encode.bank->region == Address::Region::next_residual;
}

}  // namespace

void find_total(const TotalOf& job) {
  std::array<double, kTotalLanes> sums{}, squares{};
  const auto add = [&](int64_t begin, int64_t n) {
    for (int64_t lane = 0; lane < n; ++lane) {
      const int64_t i = begin + lane;
      const double x = job.others == nullptr ? job.values[i] : job.values[i] + job.others[i];
      sums[static_cast<size_t>(lane)] += counts_negative(i) ? -x : x;
      squares[static_cast<size_t>(lane)] += x * x;
    }
  };
  const int64_t whole = job.n / kTotalLanes * kTotalLanes;
  for (int64_t begin = 0; begin < whole; begin += kTotalLanes) add(begin, kTotalLanes);
  add(whole, job.n - whole);
  Total total;
  for (size_t lane = 0; lane < kTotalLanes; ++lane) {
    total.sum += sums[lane];
    total.squares += squares[lane];
  }
  *job.to = total;
}

bool can_be_balanced(const BucketProgram& bucket) {
  if (bucket.sampled_op < 0 || bucket.lists || !bucket.keeps_residual) return false;
  const Encode& sampled = sampled_encode(bucket);
  const bool keeps_all = keeps_at_home(sampled) && sampled.residual && !sampled.share && sampled.list < 0;
  if (!keeps_all || sampled.codec->traits().replaces_momentum) return false;
  const auto reader_or_writer =
      std::find_if(bucket.ops.begin() + bucket.sampled_op + 1, bucket.ops.end(),
                   [](const Op& op) { return op.is<Encode>() || op.is<Scale>() || op.is<Decode>(); });
  return reader_or_writer != bucket.ops.end() && reader_or_writer->is<Decode>();
}

void find_balance(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, Balance& balance,
                  compress::Verdict& verdict) {
  float* const gradient = dense(bucket, memory, queue.space());
  const int64_t n = bucket.numel;
  find({.values = gradient, .others = memory.residual, .n = n, .to = &balance.given}, memory, queue);
  find({.values = memory.residual_next, .n = n, .to = &balance.kept}, memory, queue);
  decode_own(bucket, sampled_encode(bucket), memory, queue, verdict);
  find({.values = gradient, .n = n, .to = &balance.sent}, memory, queue);
}

int32_t last_to_keep(const BucketProgram& bucket) {
  for (size_t i = bucket.ops.size(); i-- > 0;) {
    const auto* const encode = bucket.ops[i].as<Encode>();
    if (encode != nullptr && encode->bank) return keeps_at_home(*encode) ? static_cast<int32_t>(i) : -1;
  }
  return -1;
}

void find_left(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, Balance& balance) {
  find({.values = memory.residual_next, .n = bucket.numel, .to = &balance.left}, memory, queue);
}

void find_begin(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, Balance& balance) {
  find({.values = memory.residual, .n = bucket.numel, .to = &balance.begin}, memory, queue);
}

double imbalance(const Balance& balance, int divisor) {
  const auto& [given, sent, kept, left, begin] = balance;
  if (given.squares <= 0) return 0;
  return std::abs(given.sum - divisor * sent.sum - kept.sum) / std::sqrt(given.squares);
}

double loss_of_residual(const Total& left, const Total& begin) {
  if (left.squares <= 0) return begin.squares > 0 ? 1 : 0;
  return std::abs(left.sum - begin.sum) / std::sqrt(left.squares);
}

}  // namespace gradtune::exec
