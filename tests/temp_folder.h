// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A folder for the files of one test, which its ranks share.
//
//   TEST(Journal, HoldsEveryStep) {
//     const TempFolder folder;
//     run_ranks(2, [&](const Rank& rank) { train(rank, folder.path("journal.jsonl")); });
//     EXPECT_EQ(steps_of(folder.path("journal.jsonl")), 12);
//   }
//
// The first one in a process makes the folder and removes it with its contents. Others in that process, and in
// processes that it starts while it lives, are the same folder.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace gradtune::test {

class TempFolder {
 public:
  TempFolder() {
    if (const char* inherited = std::getenv(kVariable); inherited != nullptr) {
      path_ = inherited;
      return;
    }
    std::string name = (std::filesystem::temp_directory_path() / "gradtune_test.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
    path_ = name;
    is_first_ = true;
    setenv(kVariable, name.c_str(), /*overwrite=*/1);
  }
  ~TempFolder() {
    if (!is_first_) return;
    unsetenv(kVariable);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  static constexpr const char* kVariable = "TEST_FOLDER";

  std::filesystem::path path_;
  bool is_first_ = false;
};

}  // namespace gradtune::test
