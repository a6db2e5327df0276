// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/store_server.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace gradtune {
namespace {

using std::chrono::milliseconds;

c10::intrusive_ptr<c10d::TCPStore> make_store(uint16_t port, bool is_server) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_server;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST(StoreServer, IsThereUntilItGoesAndNobodyIsWarned) {
  auto server = make_store(/*port=*/0, /*is_server=*/true);
  const auto client = make_store(server->getPort(), /*is_server=*/false);
  const auto prefixed =
      c10::make_intrusive<c10d::PrefixStore>("a", c10::make_intrusive<c10d::PrefixStore>("b", client));
  testing::internal::CaptureStderr();
  EXPECT_TRUE(is_served(client, milliseconds(1000)));
  EXPECT_TRUE(is_served(prefixed, milliseconds(1000)));
  server->set("key", {1});  // a client that only connects does not disturb it
  EXPECT_NO_THROW(client->wait({"key"}, milliseconds(1000)));
  server.reset();
  EXPECT_FALSE(is_served(client, milliseconds(1000)));
  EXPECT_FALSE(is_served(prefixed, milliseconds(1000)));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(StoreServer, StoresWithoutAServerAreTakenForServed) {
  EXPECT_TRUE(is_served(c10::make_intrusive<c10d::HashStore>(), milliseconds(1000)));
}

}  // namespace
}  // namespace gradtune
