// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Times of published schedules on published traces, from an independent implementation of the papers and their
// released code. The message cost is A + B x elements on one channel, B = 0.2406 ns times a factor. Forward takes
// half of backward's time for each tensor. Times are milliseconds from the first gradient to the end of the next
// forward pass.
#pragma once

#include <string>

#include "policies/cost/forward_pass.h"
#include "policies/cost/linear_cost.h"
#include "tests/policies/jobs.h"

namespace gradtune::policies::testing {

struct PublishedForward {
  double message_us, factor;
  const char* trace;
  double wait_free_ms, merged_ms;  // WFBP and MG-WFBP: everything is due when backward returns
  double partitioned_ms;           // ByteScheduler, the best size of blocks
  double gap_blocks_ms;            // US-Byte's algorithm 1 with the order of reads as priority
  double searched_blocks_ms;       // ... and its algorithm 3 with an exact replay as its objective
  double least_ms;                 // no plan on one channel is faster

  std::string name() const {
    return std::string(trace) + ", " + std::to_string(message_us) + " us, x " + std::to_string(factor);
  }
  double best_ms() const {
    return std::min({wait_free_ms, merged_ms, partitioned_ms, gap_blocks_ms, searched_blocks_ms});
  }
  LinearCost cost() const { return {.message_us = message_us, .element_us = 0.2406e-3 * factor}; }
  core::GradientTable table() const {
    core::GradientTable read = read_trace(trace);
    assume_forward(read, 0.5);
    return read;
  }
};

inline constexpr PublishedForward kPublishedForward[] = {
    {1318.6, 1, "vgg16", 129.3, 129.3, 129.3, 129.7, 129.3, 129.3},
    {1318.6, 1, "resnet50", 250.2, 96.6, 218.5, 221.1, 221.1, 96.6},
    {1318.6, 1, "bert_base", 321.8, 127.0, 288.6, 315.0, 314.0, 106.5},
    {1318.6, 1, "gpt2", 333.7, 327.8, 330.9, 332.6, 332.6, 327.6},
    {1318.6, 4, "vgg16", 218.0, 183.8, 184.6, 204.4, 198.8, 134.6},
    {1318.6, 4, "resnet50", 268.7, 96.6, 236.9, 243.5, 243.5, 96.6},
    {1318.6, 4, "bert_base", 400.4, 205.6, 367.2, 388.3, 387.4, 123.4},
    {1318.6, 4, "gpt2", 421.0, 357.5, 361.8, 363.0, 363.0, 355.5},
    {1318.6, 16, "vgg16", 617.5, 581.3, 574.9, 597.3, 595.9, 534.0},
    {1318.6, 16, "resnet50", 342.4, 139.1, 310.7, 314.7, 314.7, 99.8},
    {1318.6, 16, "bert_base", 714.8, 520.0, 681.6, 696.1, 696.1, 422.4},
    {1318.6, 16, "gpt2", 780.2, 597.9, 678.5, 722.2, 722.2, 487.8},
    {50, 4, "vgg16", 177.4, 176.0, 136.4, 136.3, 136.2, 133.3},
    {50, 4, "resnet50", 95.4, 95.4, 95.4, 95.4, 95.4, 95.4},
    {50, 4, "bert_base", 148.9, 139.9, 123.0, 122.2, 122.2, 122.1},
    {50, 4, "gpt2", 354.2, 354.2, 354.2, 354.2, 354.2, 354.2},
    {50, 16, "vgg16", 576.9, 575.5, 534.5, 535.7, 535.7, 532.8},
    {50, 16, "resnet50", 138.2, 130.4, 106.8, 109.8, 109.8, 98.5},
    {50, 16, "bert_base", 463.3, 453.8, 431.6, 435.3, 435.3, 421.2},
    {50, 16, "gpt2", 595.0, 588.1, 497.9, 496.4, 496.4, 486.5},
    {10, 4, "vgg16", 176.2, 175.9, 134.0, 133.8, 133.8, 133.3},
    {10, 4, "bert_base", 141.2, 139.4, 123.0, 122.1, 122.1, 122.1},
    {10, 16, "vgg16", 575.7, 575.4, 533.3, 533.3, 533.3, 532.7},
    {10, 16, "resnet50", 131.8, 130.3, 100.2, 100.8, 100.8, 98.5},
    {10, 16, "bert_base", 455.6, 453.7, 423.8, 424.0, 424.0, 421.1},
    {10, 16, "gpt2", 589.2, 587.8, 490.3, 488.8, 488.8, 486.5},
};

}  // namespace gradtune::policies::testing
