// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/mail.h"

namespace gradtune::exec {

void Mail::make_room(size_t notes) {
  events.make_room(notes);
  communication.make_room(notes);
  training.make_room(notes);
  host.make_room(notes);
}

// Each operation and bucket has one event, and the step has its begin and its end.
size_t most_events(const Program& program) {
  size_t events = 8;
  for (const BucketProgram& bucket : program.buckets) {
    const bool ends_are_told = bucket.space != core::Space::host;
    events += bucket.ops.size() * (ends_are_told ? 2 : 1) + 2;
  }
  return events;
}

}  // namespace gradtune::exec
