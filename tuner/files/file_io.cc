// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace gradtune::tuner {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  // Tells if all writes arrived, as far as the system knows by now.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

core::Error failed(std::string_view what, const std::string& path) {
  return {core::Error::Code::io, fmt::format("can not {} {}: {}", what, path, std::strerror(errno))};
}

core::Status write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write", path);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Removes the temporary file if it was not renamed.
class Temporary {
 public:
  explicit Temporary(std::string path) : path_(std::move(path)) {}
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  void keep() { path_.clear(); }

 private:
  std::string path_;
};

core::Status write_through(const std::string& path, const std::vector<std::string_view>& parts) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  if (file.get() < 0) return failed("open", path);
  for (const std::string_view part : parts) {
    if (core::Status status = write_all(file.get(), part, path); !status) return status;
  }
  return file.close() ? core::Status() : failed("write", path);
}

// The final target of a link, which need not exist. Any other path is returned as it is.
core::Result<std::string> behind_links(const std::string& path) {
  constexpr int kMost = 40;  // Linux follows as many
  std::filesystem::path at(path);
  for (int links = 0; links < kMost; ++links) {
    std::error_code error;
    const std::filesystem::path next = std::filesystem::read_symlink(at, error);
    if (error) return at.string();
    at = at.parent_path() / next;  // just `next` if it is absolute
  }
  errno = ELOOP;
  return failed("write", path);
}

core::Status replace(const std::string& path, const std::vector<std::string_view>& parts) {
  std::string name = path + ".XXXXXX";
  Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.get() < 0) return failed("create a file beside", path);
  Temporary temporary(name);
  for (const std::string_view part : parts) {
    if (core::Status status = write_all(file.get(), part, name); !status) return status;
  }
  if (::fchmod(file.get(), 0644) != 0 || ::fsync(file.get()) != 0 || !file.close()) return failed("write", name);
  if (::rename(name.c_str(), path.c_str()) != 0) return failed("replace", path);
  temporary.keep();
  const Descriptor folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0 || ::fsync(folder.get()) != 0) return failed("write the folder of", path);
  return {};
}

}  // namespace

core::Result<std::string> read_file(const std::string& path, int64_t most_bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return failed("open", path);
  std::string text;
  while (true) {
    constexpr size_t kChunkBytes = 64 << 10;
    const size_t size = text.size();
    text.resize(size + kChunkBytes);
    const ssize_t got = ::read(file.get(), text.data() + size, kChunkBytes);
    if (got < 0 && errno != EINTR) return failed("read", path);
    text.resize(size + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (static_cast<int64_t>(text.size()) > most_bytes) {
      return core::Error{core::Error::Code::invalid,
                         fmt::format("{} has more than {} bytes, which is too large", path, most_bytes)};
    }
    if (got == 0) return text;
  }
}

core::Status write_file_atomically(const std::string& path, std::string_view text) {
  return write_file_atomically(path, std::vector<std::string_view>{text});
}

core::Status write_file_atomically(const std::string& path, const std::vector<std::string_view>& parts) {
  struct stat about {};
  const bool is_there = ::stat(path.c_str(), &about) == 0;
  if (is_there && !S_ISREG(about.st_mode)) return write_through(path, parts);
  const auto target = behind_links(path);
  return target ? replace(target.value(), parts) : target.error();
}

}  // namespace gradtune::tuner
