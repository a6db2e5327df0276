// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A backward pass that a node of another one calls, as checkpointing does, or a function that computes elsewhere than
// its inputs are.
#pragma once

namespace gradtune {

// Whether the pass that the calling thread works for is such a one. False outside of passes.
bool is_nested_pass();

}  // namespace gradtune
