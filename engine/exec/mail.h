// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Notes that the threads of an executor leave for each other. Each thread has a box of its own. Events have another
// one, which one thread at a time empties. In a step nothing here allocates, and no lock is contended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/exec/event_ring.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// Something has happened, or operation `op` of `bucket` is to be run. `stop` ends the thread that reads it.
struct Event {
  enum class Kind : uint8_t { begin, bucket_ready, op_done, op_ended, control_done, hang, stop } kind;
  int32_t bucket = -1;
  int32_t op = -1;
};

// The collective at `op` of `bucket` is to be started; -1: the control word's.
struct Start {
  int32_t bucket = -1;
  int32_t op = -1;
  bool finite = true;  // this rank's numbers
};

// Notes for one thread, and the bell that wakes it.
template <typename Note>
class Mailbox {
 public:
  // Called while no thread uses the box.
  void make_room(size_t notes) { ring_ = std::make_unique<EventRing<Note>>(notes); }

  void put(const Note& note) {
    ring_->push(note);
    bell_.ring();
  }
  bool take(Note& note) { return ring_->pop(note); }
  Doorbell& bell() { return bell_; }

 private:
  std::unique_ptr<EventRing<Note>> ring_;
  Doorbell bell_;
};

// Events from any thread, for the one that has the turn to handle them.
class Events {
 public:
  explicit Events(Doorbell& bell) : bell_(&bell) {}

  // Called while no thread uses them.
  void make_room(size_t events) { ring_ = std::make_unique<EventRing<Event>>(events); }
  size_t room() const { return ring_->capacity(); }

  // Wakes the thread that handles events, unless a thread is doing so.
  void post(const Event& event) {
    ring_->push(event);
    if (!turn_.is_seen()) bell_.load()->ring();
  }
  // Wakes nobody: the event stays until somebody looks.
  void leave(const Event& event) { ring_->push(event); }
  // The bell of the thread that handles events from now on. The former one has to look once more, or hand over to
  // one that does: others may have seen its bell.
  void wake(Doorbell& bell) { bell_ = &bell; }

  // Calls handle(event) for each event, unless another thread has the turn; that one then does so.
  template <typename Handle>
  void handle_all(const Handle& handle) {
    turn_.take([&] {
      Event event;
      while (ring_->pop(event)) handle(event);
    });
  }

 private:
  std::unique_ptr<EventRing<Event>> ring_;
  Turn turn_;
  std::atomic<Doorbell*> bell_;
};

struct Mail {
  Mailbox<Start> communication;  // in the order of the scheduler
  Mailbox<Event> training;       // for the thread that runs backward
  Mailbox<Event> host;
  Events events{communication.bell()};

  // Room in each box, while no thread uses them.
  void make_room(size_t notes);
};

// An upper bound for a step's notes in each box.
size_t most_events(const Program& program);

}  // namespace gradtune::exec
