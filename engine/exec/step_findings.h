// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The findings of a step's operations, bucket by bucket, as the host knows them, and the judgement that follows from
// them. Operations of the host write theirs here. The findings of a device come from its reports (findings.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/result.h"
#include "engine/exec/findings.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

class StepFindings {
 public:
  // Called when a program is put in force.
  void follow(const Program& program);
  void begin();

  Findings& of(int32_t bucket) { return findings_[static_cast<size_t>(bucket)]; }
  const Findings& of(int32_t bucket) const { return findings_[static_cast<size_t>(bucket)]; }
  std::span<const Findings> all() const { return findings_; }
  compress::Verdict& verdict(int32_t bucket, int32_t op) { return verdicts_[at(bucket, op)]; }
  const compress::Verdict& verdict(int32_t bucket, int32_t op) const { return verdicts_[at(bucket, op)]; }
  // A payload of the bucket could not be decoded. The first such error counts.
  void reject(int32_t bucket, const core::Error& error);
  // Takes the findings of a device's operations from the host's copy of the bucket's report.
  void take(int32_t bucket, const std::byte* report);

  bool is_finite(int32_t bucket) const;
  // True if residuals were added to gradients on this rank.
  bool drained() const;
  // The error found in the bucket's payloads, unless non-finite values excuse it.
  core::Status rejection(int32_t bucket, bool finite) const;

 private:
  const BucketProgram& program(int32_t bucket) const { return program_->buckets[static_cast<size_t>(bucket)]; }
  size_t at(int32_t bucket, int32_t op) const { return static_cast<size_t>(program(bucket).first_op + op); }

  const Program* program_ = nullptr;
  std::vector<Findings> findings_;                      // per bucket
  std::vector<compress::Verdict> verdicts_;             // per operation
  std::vector<std::optional<core::Error>> rejections_;  // per bucket
};

}  // namespace gradtune::exec
