// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Detects a nested backward pass, which a node of another pass calls. Checkpointing does this, and so does a
// function that computes on another device than that of its inputs.
#pragma once

namespace gradtune {

// True if the calling thread works for a nested pass. False outside of passes.
bool is_nested_pass();

}  // namespace gradtune
