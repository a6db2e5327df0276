// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/step_findings.h"

#include <algorithm>
#include <string>

namespace gradtune::exec {

void StepFindings::follow(const Program& program) {
  program_ = &program;
  findings_.assign(program.buckets.size(), {});
  verdicts_.assign(static_cast<size_t>(program.ops), {});
  rejections_.assign(program.buckets.size(), std::nullopt);
}

void StepFindings::begin() {
  std::ranges::fill(findings_, Findings());
  std::ranges::fill(verdicts_, compress::Verdict());
  std::ranges::fill(rejections_, std::nullopt);
}

void StepFindings::reject(int32_t bucket, const core::Error& error) {
  std::optional<core::Error>& rejected = rejections_[static_cast<size_t>(bucket)];
  if (!rejected) rejected = {error.code, "bucket " + std::to_string(bucket) + ": " + error.message};
}

void StepFindings::take(int32_t bucket, const std::byte* report) {
  const BucketProgram& what = program(bucket);
  const Findings& away = *reinterpret_cast<const Findings*>(report);
  const auto* const verdicts = reinterpret_cast<const compress::Verdict*>(report + sizeof(Findings));
  const auto is_away = [&](int32_t op) { return what.ops[static_cast<size_t>(op)].space != core::Space::host; };
  const auto ops = static_cast<int32_t>(what.ops.size());
  for (int32_t op = 0; op < ops; ++op) {
    if (is_away(op)) verdict(bucket, op) = verdicts[op];
  }
  Findings& findings = of(bucket);
  if (what.begins_in != core::Space::host) {
    findings.drained = away.drained;
    findings.drained_parked = away.drained_parked;
    findings.sample.gradient = away.sample.gradient;
    findings.sample.residual = away.sample.residual;
    findings.balance.begin = away.balance.begin;
  }
  if (what.sampled_op >= 0 && is_away(what.sampled_op)) {
    findings.sample.given = away.sample.given;
    findings.sample.missed = away.sample.missed;
    findings.of_sample = away.of_sample;
    findings.balance.given = away.balance.given;
    findings.balance.sent = away.balance.sent;
    findings.balance.kept = away.balance.kept;
  }
  const int32_t last = last_to_keep(what);
  if (last >= 0 && is_away(last)) findings.balance.left = away.balance.left;
}

bool StepFindings::is_finite(int32_t bucket) const {
  const auto ops = static_cast<int32_t>(program(bucket).ops.size());
  for (int32_t op = 0; op < ops; ++op) {
    if (verdict(bucket, op).nonfinite != 0) return false;
  }
  return true;
}

bool StepFindings::drained() const {
  return std::ranges::any_of(findings_, [](const Findings& each) { return each.drained.added; });
}

core::Status StepFindings::rejection(int32_t bucket, bool finite) const {
  const BucketProgram& what = program(bucket);
  const bool is_excused = !finite && !what.carries_nonfinite;
  if (is_excused) return {};
  if (const auto& rejected = rejections_[static_cast<size_t>(bucket)]) return *rejected;
  for (size_t op = 0; op < what.ops.size() && what.space != core::Space::host; ++op) {
    // The payload may be overwritten after its decode, so the verdict has to say which one was wrong.
    const uint32_t position = verdict(bucket, static_cast<int32_t>(op)).rejected;
    const auto* const decode = what.ops[op].as<Decode>();
    if (position == 0 || decode == nullptr) continue;
    return core::Error{core::Error::Code::corrupt, "bucket " + std::to_string(bucket) + ": payload " +
                                                       std::to_string(position - 1) + " of " +
                                                       core::to_string(decode->codec->spec()) +
                                                       " can not be decoded: its header, counts, indices or scales are "
                                                       "not those of a payload of this length"};
  }
  return {};
}

}  // namespace gradtune::exec
