// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/draining.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "engine/core/float16.h"

namespace gradtune::exec {
namespace {

using core::DType;

struct Squares {
  double gradient = 0, residual = 0;
};

template <typename Body>
void for_parts(int64_t n, compress::HostQueue& queue, Body body) {
  const int64_t length = drain_part(n);
  compress::for_blocks(queue, (n + length - 1) / length,
                       [&](int64_t part) { body(part, part * length, std::min(n, (part + 1) * length)); });
}

// load(i) returns a gradient element and its residual.
template <typename Load>
Squares squares(int64_t n, compress::HostQueue& queue, Load load) {
  std::array<Squares, kDrainParts> parts{};
  for_parts(n, queue, [&](int64_t part, int64_t begin, int64_t end) {
    Squares& sum = parts[static_cast<size_t>(part)];
    for (int64_t i = begin; i < end; ++i) {
      const auto [gradient, residual] = load(i);
      sum.gradient += static_cast<double>(gradient) * static_cast<double>(gradient);
      sum.residual += static_cast<double>(residual) * static_cast<double>(residual);
    }
  });
  Squares all;
  for (const Squares& part : parts) {
    all.gradient += part.gradient;
    all.residual += part.residual;
  }
  return all;
}

// Returns the share of the residual to add, which also determines the part that is left.
Drained rule(const Squares& all) {
  if (all.residual == 0) return {};
  if (all.gradient == 0 || !std::isfinite(all.gradient)) return {.added = false, .left = true};
  const auto share = static_cast<float>(std::min(1.0, kDrainShare * std::sqrt(all.gradient / all.residual)));
  return {.added = true, .left = share != 1, .share = share};
}

template <typename Type>
Drained drain_as(const Drain& job, compress::HostQueue& queue) {
  auto* gradient = reinterpret_cast<typename Type::Stored*>(job.gradient);
  const Drained drained =
      rule(squares(job.n, queue, [&](int64_t i) { return std::pair(Type::load(gradient[i]), job.residual[i]); }));
  if (!drained.added) return drained;
  for_parts(job.n, queue, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float before = Type::load(gradient[i]);
      gradient[i] = Type::store(before + drained.share * job.residual[i]);
      job.residual_next[i] = drained.left ? job.residual[i] - (Type::load(gradient[i]) - before) : 0;
    }
  });
  return drained;
}

}  // namespace

Drained drain(const Drain& job, compress::HostQueue& queue) {
  switch (job.dtype) {
    case DType::f32: return drain_as<core::Plain<float>>(job, queue);
    case DType::bf16: return drain_as<core::Bf16>(job, queue);
    case DType::f16: return drain_as<core::F16>(job, queue);
    case DType::f64: break;
  }
  core::check(false, "no residual is kept of double precision");
  return {};
}

Drained drain(const ParkedDrain& job, compress::HostQueue& queue) {
  const Drained drained = rule(squares(job.n, queue, [&](int64_t i) {
    job.residual[i] *= job.left_before;
    return std::pair(job.gradient[i], job.residual[i]);
  }));
  if (!drained.added) return drained;
  for_parts(job.n, queue, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) job.gradient[i] += drained.share * job.residual[i];
  });
  return drained;
}

}  // namespace gradtune::exec
