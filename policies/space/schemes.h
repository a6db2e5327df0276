// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The options that a job admits: each compressor in each program that it can run, with the bytes sent and the least
// fidelity. Private to policies/. A policy decides which of them are worth a measurement.
#pragma once

#include <string>
#include <vector>

#include "policies/cost/knowledge.h"
#include "policies/space/candidate.h"
#include "policies/space/partition.h"

namespace gradtune::policies {

struct Scheme {
  core::Option option;
  std::string label;                                // "bf16 two_step host"
  core::Fidelity fidelity = core::Fidelity::exact;  // the least that admits it
  size_t codec = 0;  // position in Knowledge::codecs; the plain all_reduce counts as "none"
  core::Place place = core::Place::device;
  bool summable = true;
  double sent = 0;  // bytes per rank, over bytes of the gradient
  size_t end = 0;   // it skips the tensors from here on, as a lossy scheme skips the small tensors at the end
};

// All schemes, compressor by compressor in the order of Knowledge::codecs, those on the device first. For each
// compressor:
// - none: all_reduce in place, gather, two_step
// - summable: gather, two_step (both sum in fp32), all_reduce of payloads; a compressor of several rounds has only
//   the last
// - opaque: gather, two_step
std::vector<Scheme> admitted_schemes(const Knowledge& knowledge);

// The form on every bucket of the partition, with two exceptions:
// - The tensors that it skips are sent without loss, in 16 bits if those are admitted, in one more bucket for each
//   dtype.
// - Buckets whose gradient the compressor would not shrink get the plain all_reduce. Examples are 16-bit gradients
//   for a 16-bit compressor, and buckets without a matrix for a compressor of matrices.
//
// The collectives of two buckets are in flight: one that is on the wire, and one that is being prepared.
Candidate apply(const Scheme& form, const Partition& partition, const Knowledge& knowledge);

// True if the strategy fits the table and uses only admitted compressors.
bool admitted(const core::Strategy& strategy, const Knowledge& knowledge);

}  // namespace gradtune::policies
