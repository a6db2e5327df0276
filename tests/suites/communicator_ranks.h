// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs the same body on every rank of a group, one thread each, as a launcher would run processes.
#pragma once

#include <thread>
#include <vector>

namespace gradtune::suites {

template <typename Body>
void on_every_rank(int size, const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gradtune::suites
