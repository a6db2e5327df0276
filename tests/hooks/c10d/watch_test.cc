// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/watch.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>

#include "hooks/c10d/roll_call.h"

namespace gradtune {
namespace {

using testing::HasSubstr;

// A store whose answers wait until they are released, or that does not answer any more.
class HeldStore : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>& keys) override {
    if (gone_) throw std::runtime_error("the store is gone");
    ++asked_;
    released_.wait();
    return c10d::HashStore::check(keys);
  }
  void release() { promise_.set_value(); }
  void end() { gone_ = true; }
  int asked() const { return asked_; }

 private:
  std::promise<void> promise_;
  const std::shared_future<void> released_ = promise_.get_future().share();
  std::atomic<bool> gone_ = false;
  std::atomic<int> asked_ = 0;
};

// Asks until it has an error; otherwise the test's own limit ends it.
core::Error found_by(Watch& watch) {
  for (;;) {
    if (const core::Status status = watch.ask(); !status) return status.error();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// A rank that waits for a step continues meanwhile, however slow the store is.
TEST(Watch, AskingDoesNotWaitForTheStore) {
  const auto store = c10::make_intrusive<HeldStore>();
  Watch watch(store, 0, 2);
  while (store->asked() == 0) EXPECT_TRUE(watch.ask().ok());  // returns although nobody answers
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(watch.ask().ok());
  EXPECT_EQ(store->asked(), 1) << "one question at a time";
  raise_alarm(*c10::make_intrusive<c10d::HashStore>(), {core::Error::Code::invalid, "elsewhere"});
  store->release();
  raise_alarm(*store, {core::Error::Code::invalid, "rank 1 at step 3: no luck"});
  const core::Error error = found_by(watch);
  EXPECT_EQ(error.code, core::Error::Code::peer);
  EXPECT_THAT(error.message, HasSubstr("another rank failed: rank 1 at step 3: no luck"));
}

TEST(Watch, EndsThoughTheStoreDoesNotAnswer) {
  const auto store = c10::make_intrusive<HeldStore>();
  {
    Watch watch(store, 0, 2);
    while (store->asked() == 0) EXPECT_TRUE(watch.ask().ok());
  }
  store->release();  // for the thread that was left behind
}

TEST(Watch, AStoreThatIsGoneIsNoFailure) {
  const auto store = c10::make_intrusive<HeldStore>();
  store->release();
  Watch watch(store, 0, 2);
  store->end();
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(watch.ask().ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(Watch, RanksInDifferentCallsAreBothTold) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Watch zero(store, 0, 2), one(store, 1, 2);
  for (Watch* watch : {&zero, &one}) watch->enter(Call::backward, 0);
  zero.enter(Call::save_checkpoint, 0);
  one.enter(Call::step, 0);
  // Each may find it first, and then tells the other one.
  while (zero.ask().ok()) static_cast<void>(one.ask());
  for (Watch* watch : {&zero, &one}) {
    const core::Error error = found_by(*watch);
    EXPECT_EQ(error.code, core::Error::Code::peer);
    EXPECT_THAT(error.message, AllOf(HasSubstr("save_checkpoint() at step 0"), HasSubstr("step() at step 0")));
  }
}

TEST(Watch, WhatARankKnowsGoesBeforeThatOneWasLost) {
  c10d::HashStore store;
  raise_alarm(store, {core::Error::Code::lost, "rank 2 at step 1"});
  EXPECT_EQ(alarm_of(store).error().code, core::Error::Code::lost);
  raise_alarm(store, {core::Error::Code::invalid, "rank 1 at step 1: the cause"});
  raise_alarm(store, {core::Error::Code::lost, "rank 0 at step 1"});
  raise_alarm(store, {core::Error::Code::invalid, "rank 0 at step 1: a consequence"});
  EXPECT_THAT(alarm_of(store).error().message, HasSubstr("the cause"));
}

}  // namespace
}  // namespace gradtune
