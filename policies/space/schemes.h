// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The options that a job admits: each compressor in each program that it can run, with what that sends and how far it
// changes what is trained. Private to policies/; which of them are worth a measurement is for a policy to say.
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
  size_t codec = 0;  // position in Knowledge::codecs; the plain all_reduce counts as its "none"
  core::Place place = core::Place::device;
  bool summable = true;
  double sent = 0;  // bytes per rank, over bytes of the gradient
  size_t end = 0;   // the tensor from which on it leaves them alone, as a lossy one does the small tensors at the end
};

// All of them, compressor by compressor in the order of Knowledge::codecs, on the device first. Per compressor:
//   none      all_reduce in place, gather, two_step
//   summable  gather, two_step (both sum in fp32), all_reduce of payloads; of several rounds the last only
//   opaque    gather, two_step
std::vector<Scheme> admitted_schemes(const Knowledge& knowledge);

// The form on every bucket of the partition, but
//   - tensors that it leaves alone are sent without loss, in 16 bits where those are admitted, in one more bucket for
//     each dtype;
//   - buckets whose gradient the compressor would not shrink, such as 16-bit ones for a 16-bit compressor, or those
//     without a matrix for one of matrices, get the plain all_reduce.
// In flight are the collectives of two buckets: one that is on the wire, and one that gets ready.
Candidate apply(const Scheme& form, const Partition& partition, const Knowledge& knowledge);

// Whether the strategy fits the table and uses nothing but admitted compressors.
bool admitted(const core::Strategy& strategy, const Knowledge& knowledge);

}  // namespace gradtune::policies
