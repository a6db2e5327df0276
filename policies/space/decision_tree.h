// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The decision tree of Espresso (Wang et al., EuroSys 2023, section 4; ByteComp in its second version): all programs
// that synchronise one bucket. Its dimensions are: with or without compression; the place of each encode and decode;
// flat or hierarchical; one step (indivisible) or two (divisible), and the collectives; the points at which to
// decode and encode again.
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
// Comm is all_reduce and Comm_c all_gather. A first step is divisible or not (reduce_scatter or reduce; all_to_all
// or gather of payloads), and determines its second step (all_gather, broadcast).
//
// The tree does not allow a collective to add up payloads. The additional programs for summable payloads are an
// extension that is counted separately: Comp . all_reduce . Decomp, and an all_reduce between nodes of payloads that
// were encoded just before.
#pragma once

#include <span>
#include <vector>

#include "engine/core/option.h"

namespace gradtune::policies {

using Steps = std::vector<core::Step>;  // of an option; every encode and decode names codec 0

// With two places there are 63 flat and 4278 hierarchical programs, with one place 12 and 162.
std::vector<Steps> flat_programs(std::span<const core::Place> places);
std::vector<Steps> hierarchical_programs(std::span<const core::Place> places);

// The extension.
std::vector<Steps> flat_summing_programs(std::span<const core::Place> places);
std::vector<Steps> hierarchical_summing_programs(std::span<const core::Place> places);

// The program with one codec for payloads that leave the node, and another for those that do not. It has one codec
// if both are equal or only one is needed, and none if nothing is encoded.
core::Option with_codecs(Steps steps, const core::CompressorSpec& inside, const core::CompressorSpec& between);

}  // namespace gradtune::policies
