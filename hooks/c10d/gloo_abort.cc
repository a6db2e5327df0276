// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/gloo_abort.h"

#include <gloo/context.h>
#include <gloo/transport/pair.h>

#include <exception>
#include <string>
#include <string_view>
#include <typeinfo>

// Declares the only function of Gloo's TCP connections that is needed here; LibTorch exports it. Gloo's own header
// includes others that no package ships.
namespace gloo::transport::tcp {
class Pair {
 public:
  std::exception_ptr signalExceptionExternal(const std::string& msg);
};
}  // namespace gloo::transport::tcp

namespace gradtune {
namespace {

// Null for connections of other kinds. A TCP connection's first base is transport::Pair, so both have the same
// address.
gloo::transport::tcp::Pair* tcp_pair(gloo::transport::Pair* pair) {
  if (pair == nullptr || std::string_view(typeid(*pair).name()) != "N4gloo9transport3tcp4PairE") return nullptr;
  return reinterpret_cast<gloo::transport::tcp::Pair*>(pair);
}

// Gives access to the contexts, which are protected.
struct Opened : c10d::ProcessGroupGloo {
  static const std::vector<std::shared_ptr<gloo::Context>>& contexts(const c10d::ProcessGroupGloo& group) {
    return group.*(&Opened::contexts_);
  }
};

}  // namespace

void abort_connections(c10d::ProcessGroupGloo& group) {
  for (const auto& context : Opened::contexts(group)) {
    for (int rank = 0; rank < group.getSize(); ++rank) {
      if (rank == group.getRank()) continue;
      try {
        if (auto* pair = tcp_pair(context->getPair(rank).get())) pair->signalExceptionExternal("the group was aborted");
      } catch (const std::exception&) {
        // The connection has failed before.
      }
    }
  }
}

}  // namespace gradtune
