// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The decision tree of Espresso (Wang et al., EuroSys 2023, section 4; ByteComp in its second version): every way to
// synchronise one bucket, as programs. Its dimensions: compress or not; where each encode and decode runs; flat or
// hierarchical; one step (indivisible) or two (divisible), by which collectives; where to decode and encode again.
//
//   Start : flat | hierarchical
//   flat  : Comm                                    | Comp . Comm_c . Decomp
//         | Comm1 . T1                              | Comp . Comm1_c . T2
//   hier  : Comm1(intra) . ( T3 | Comp . T4 )
//         | Comp . Comm1_c(intra) . ( T4 | Decomp . ( T3 | Comp . T4 ) )
//   T1 (second step, input plain)         : Comm2    | Comp . Comm2_c . Decomp
//   T2 (second step, input encoded)       : Comm2_c . Decomp | Decomp . T1
//   T3 (inter and second intra, plain)    : Comm . T1   | Comm1 . T5
//   T4 (inter and second intra, encoded)  : Comm_c . T2 | Comm1_c . ( Comm2_c . T2 | Decomp . T5 )
//   T5 (second inter and second intra)    : Comm2 . T1  | Comp . Comm2_c . T2
//
// Comm is all_reduce and Comm_c all_gather; a first step is divisible or not (reduce_scatter or reduce; all_to_all or
// gather of payloads), and its second step follows from that (all_gather, broadcast).
//
// The tree forbids to add payloads up in a collective. What summable payloads make possible besides is an extension,
// counted apart: Comp . all_reduce . Decomp, and an all_reduce between nodes of what was encoded right before.
#pragma once

#include <span>
#include <vector>

#include "engine/core/option.h"

namespace gradtune::policies {

using Steps = std::vector<core::Step>;  // of an option; every encode and decode names codec 0

// With two places 63 flat and 4278 hierarchical programs, with one 12 and 162.
std::vector<Steps> flat_programs(std::span<const core::Place> places);
std::vector<Steps> hierarchical_programs(std::span<const core::Place> places);

// The extension.
std::vector<Steps> flat_summing_programs(std::span<const core::Place> places);
std::vector<Steps> hierarchical_summing_programs(std::span<const core::Place> places);

// The program with one codec for payloads that travel between nodes, and another for those that do not; one codec where
// both are the same or only one is needed, none where nothing is encoded.
core::Option with_codecs(Steps steps, const core::CompressorSpec& inside, const core::CompressorSpec& between);

}  // namespace gradtune::policies
