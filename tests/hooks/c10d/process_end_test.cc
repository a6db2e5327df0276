// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/process_end.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <future>
#include <string>

namespace gradtune {
namespace {

using std::chrono::minutes;

// A process that ends on request.
class Child {
 public:
  Child() {
    EXPECT_EQ(pipe(names_.data()), 0);
    EXPECT_EQ(pipe(orders_.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const std::string name = process_name() + "\n";
      char order = 0;
      close(orders_[1]);
      const bool told = write(names_[1], name.data(), name.size()) > 0 && read(orders_[0], &order, 1) == 0;
      _exit(told ? 0 : 1);
    }
    for (char letter = 0; read(names_[0], &letter, 1) == 1 && letter != '\n';) name_ += letter;
  }

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  void end() { close(orders_[1]); }
  void ask() const { EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_); }
  bool is_gone() const { return kill(pid_, 0) != 0 && errno == ESRCH; }

 private:
  std::array<int, 2> names_{}, orders_{};
  pid_t pid_ = 0;
  std::string name_;
};

TEST(ProcessEnd, IsWaitedForUntilTheParentHasAsked) {
  Child child;
  ASSERT_FALSE(child.name().empty());
  ASSERT_NE(child.name(), process_name());
  auto waited = std::async(std::launch::async, [&] {
    await_end_of_process(child.name(), minutes(5));
    return child.is_gone();
  });
  child.end();
  child.ask();
  EXPECT_TRUE(waited.get());
}

TEST(ProcessEnd, IsEnoughWhereTheParentNeverAsks) {
  Child child;
  child.end();
  await_end_of_process(child.name(), minutes(5));
  EXPECT_FALSE(child.is_gone());
  child.ask();
}

TEST(ProcessEnd, IsNotWaitedForWhereThisProcessCanNotSeeIt) {
  const std::string own = process_name();
  for (const std::string& name : {own, std::string(), std::string("another machine/pid:[1]/1"), own + "x", own + "/"}) {
    await_end_of_process(name, minutes(5));
  }
  const std::string space = own.substr(0, own.rfind('/') + 1);
  await_end_of_process(space + "999999999", minutes(5));
  await_end_of_process(space + "-1", minutes(5));
}

TEST(ProcessEnd, IsNotWaitedForLongerThanAllowed) {
  Child child;
  await_end_of_process(child.name(), std::chrono::milliseconds(30));
  EXPECT_FALSE(child.is_gone());
  child.end();
  child.ask();
}

}  // namespace
}  // namespace gradtune
