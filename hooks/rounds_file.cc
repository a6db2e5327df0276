// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/rounds_file.h"

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include "hooks/fragment.h"
#include "tuner/files/checkpoint_file.h"
#include "tuner/files/file_io.h"

namespace gradtune {
namespace {

namespace fs = std::filesystem;
using core::Error;

// Changes with the format.
constexpr int64_t kVersion = 4;
constexpr std::string_view kBegin = "rounds-", kEnd = ".pt";

std::string path_in(const std::string& folder, int64_t step) {
  return (fs::path(folder) / (std::string(kBegin) + std::to_string(step) + std::string(kEnd))).string();
}

// The steps in the names of such files.
std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) continue;
    const char* const last = name.data() + name.size() - kEnd.size();
    int64_t step = -1;
    const auto read = std::from_chars(name.data() + kBegin.size(), last, step);
    if (read.ec == std::errc() && read.ptr == last && step >= 0) steps.push_back(step);
  }
  return steps;
}

core::Status write(const std::string& folder, const SavedRounds& saved) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Error{Error::Code::io, "can not make the folder " + folder + ": " + error.message()};
  torch::serialize::OutputArchive archive;
  const std::vector<int64_t> numbers{kVersion,
                                     saved.session_step,
                                     saved.dense_steps,
                                     saved.rounds,
                                     saved.round.updates,
                                     saved.round.delay,
                                     saved.round.fragments,
                                     static_cast<int64_t>(saved.momenta.size())};
  archive.write("numbers", torch::tensor(numbers, torch::kLong));
  for (size_t p = 0; p < saved.momenta.size(); ++p) archive.write("momentum." + std::to_string(p), saved.momenta[p]);
  std::ostringstream text;
  archive.save_to(text);
  return tuner::write_file_atomically(path_in(folder, saved.session_step), text.str());
}

core::Result<SavedRounds> read(const std::string& folder, int64_t step) {
  const std::string path = path_in(folder, step);
  const auto text = tuner::read_file(path, INT64_MAX);
  if (!text) return text.error();
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(text.value().data(), text.value().size());
    torch::Tensor tensor;
    archive.read("numbers", tensor);
    TORCH_CHECK(tensor.scalar_type() == torch::kLong && tensor.numel() > 0, "its numbers are others");
    const int64_t* const numbers = tensor.data_ptr<int64_t>();
    TORCH_CHECK(numbers[0] == kVersion, "its version is ", numbers[0], ", and ", kVersion, " is needed");
    TORCH_CHECK(tensor.numel() == 8 && numbers[1] == step, "its numbers are others");
    SavedRounds saved{.session_step = numbers[1],
                      .dense_steps = numbers[2],
                      .rounds = numbers[3],
                      .round = {.updates = numbers[4], .delay = numbers[5], .fragments = numbers[6]}};
    for (int64_t p = 0; p < numbers[7]; ++p) {
      archive.read("momentum." + std::to_string(p), saved.momenta.emplace_back());
    }
    return saved;
  } catch (const c10::Error& error) {
    return Error{Error::Code::corrupt, path + " holds no state of rounds: " + error.what_without_backtrace()};
  }
}

// The step of the session's checkpoint in that folder, or that of the first fragment's session.
std::optional<int64_t> session_step(const std::string& folder, int64_t fragments) {
  const fs::path in = folder_of({.number = 0, .count = fragments}, folder);
  const auto text = tuner::read_file((in / tuner::kManifestName).string(), 1 << 16);
  if (!text) return {};
  const auto manifest = tuner::parse_manifest(text.value());
  return manifest ? std::optional(manifest.value().step) : std::nullopt;
}

// The state that belongs to the checkpoint beside it.
core::Result<SavedRounds> find(const std::string& folder) {
  Error why{Error::Code::io, "no file " + path_in(folder, 0) + ", of whatever step, is there"};
  for (const int64_t step : steps_in(folder)) {
    core::Result<SavedRounds> saved = read(folder, step);
    if (saved && session_step(folder, saved.value().round.fragments) == step) return saved;
    why = saved ? Error{Error::Code::mismatch,
                        path_in(folder, step) + " is of another step than the checkpoint beside it"}
                : saved.error();
  }
  return why;
}

}  // namespace

void save_rounds(Session& session, const std::string& folder, const SavedRounds& saved,
                 const std::function<void()>& save_sessions) {
  session.must_succeed("write the checkpoint", write(folder, saved));
  save_sessions();
  std::error_code ignored;  // a file that stays is of another step
  for (const int64_t step : steps_in(folder)) {
    if (step != saved.session_step) fs::remove(path_in(folder, step), ignored);
  }
}

// Only rank 0 has the manifest, if each rank has a disk of its own.
SavedRounds load_rounds(Session& session, const std::string& folder) {
  const std::string what = "read the checkpoint";
  core::Result<SavedRounds> mine = Error{Error::Code::io, "not read"};
  core::Status status;
  if (session.rank() == 0) {
    mine = find(folder);
    if (!mine) status = mine.error();
  }
  session.must_succeed(what, status);
  const uint64_t step = session.gather(session.rank() == 0 ? static_cast<uint64_t>(mine.value().session_step) : 0)[0];
  if (session.rank() != 0) {
    mine = read(folder, static_cast<int64_t>(step));
    if (!mine) status = mine.error();
  }
  session.must_succeed(what, status);
  return mine.value();
}

}  // namespace gradtune
