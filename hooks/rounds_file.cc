// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/rounds_file.h"

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <charconv>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>

#include "hooks/outer_step.h"
#include "hooks/refusal.h"
#include "tuner/files/checkpoint_file.h"
#include "tuner/files/file_io.h"

namespace gradtune {
namespace {

namespace fs = std::filesystem;
using core::Error;

// Changes with the format.
constexpr int64_t kVersion = 4;
constexpr std::string_view kBegin = "rounds-", kEnd = ".pt", kFragment = ".fragment-";
constexpr size_t kNumbers = 7;

std::string path_in(const std::string& folder, int64_t step) {
  return (fs::path(folder) / (std::string(kBegin) + std::to_string(step) + std::string(kEnd))).string();
}

// The folder of the checkpoint of a fragment's session.
std::string folder_of(const std::string& folder, int64_t step, size_t fragment, size_t fragments) {
  if (fragments == 1) return folder;
  const std::string name = std::string(kBegin) + std::to_string(step) + std::string(kFragment);
  return (fs::path(folder) / (name + std::to_string(fragment + 1))).string();
}

struct Entry {
  fs::path path;
  int64_t step = -1;
  bool is_file = false;  // else the folder of a fragment
};

std::vector<Entry> entries_in(const std::string& folder) {
  std::vector<Entry> entries;
  std::error_code ignored;
  for (const auto& each : fs::directory_iterator(folder, ignored)) {
    const std::string name = each.path().filename().string();
    if (!name.starts_with(kBegin)) continue;
    Entry entry{.path = each.path()};
    const auto read = std::from_chars(name.data() + kBegin.size(), name.data() + name.size(), entry.step);
    const std::string_view rest(read.ptr, name.data() + name.size());
    entry.is_file = rest == kEnd;
    if (read.ec == std::errc() && (entry.is_file || rest.starts_with(kFragment))) entries.push_back(entry);
  }
  return entries;
}

core::Status write(const std::string& folder, const SavedRounds& saved) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Error{Error::Code::io, "can not make the folder " + folder + ": " + error.message()};
  torch::serialize::OutputArchive archive;
  std::vector<int64_t> numbers{kVersion,
                               saved.dense_steps,
                               saved.rounds,
                               saved.round.updates,
                               saved.round.delay,
                               saved.round.fragments,
                               static_cast<int64_t>(saved.momenta.size())};
  core::check(numbers.size() == kNumbers, "the numbers before the steps are as many as are read");
  numbers.insert(numbers.end(), saved.session_steps.begin(), saved.session_steps.end());
  archive.write("numbers", torch::tensor(numbers, torch::kLong));
  for (size_t p = 0; p < saved.momenta.size(); ++p) archive.write("momentum." + std::to_string(p), saved.momenta[p]);
  std::ostringstream text;
  archive.save_to(text);
  return tuner::write_file_atomically(path_in(folder, saved.session_steps.front()), text.str());
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
    const auto count = static_cast<size_t>(tensor.numel());
    TORCH_CHECK(count > kNumbers && numbers[5] == static_cast<int64_t>(count - kNumbers), "its numbers are others");
    SavedRounds saved{.session_steps = std::vector<int64_t>(numbers + kNumbers, numbers + count),
                      .dense_steps = numbers[1],
                      .rounds = numbers[2],
                      .round = {.updates = numbers[3], .delay = numbers[4], .fragments = numbers[5]}};
    TORCH_CHECK(saved.session_steps.front() == step, "it is of another step");
    for (int64_t p = 0; p < numbers[6]; ++p) {
      archive.read("momentum." + std::to_string(p), saved.momenta.emplace_back());
    }
    return saved;
  } catch (const c10::Error& error) {
    return Error{Error::Code::corrupt, path + " holds no state of rounds: " + error.what_without_backtrace()};
  }
}

// The sessions' checkpoints are those that the state names.
bool is_complete(const std::string& folder, const SavedRounds& saved) {
  const size_t fragments = saved.session_steps.size();
  for (size_t f = 0; f < fragments; ++f) {
    const fs::path in = folder_of(folder, saved.session_steps.front(), f, fragments);
    const auto text = tuner::read_file((in / tuner::kManifestName).string(), 1 << 16);
    if (!text) return false;
    const auto manifest = tuner::parse_manifest(text.value());
    if (!manifest || manifest.value().step != saved.session_steps[f]) return false;
  }
  return true;
}

core::Result<SavedRounds> find(const std::string& folder) {
  Error why{Error::Code::io, "there is no file rounds-STEP.pt in " + folder};
  for (const Entry& entry : entries_in(folder)) {
    if (!entry.is_file) continue;
    core::Result<SavedRounds> saved = read(folder, entry.step);
    if (saved && is_complete(folder, saved.value())) return saved;
    why = saved
              ? Error{Error::Code::mismatch, entry.path.string() + " is of another step than the checkpoint beside it"}
              : saved.error();
  }
  return why;
}

}  // namespace

void save_rounds(const Sessions& sessions, const std::string& folder, SavedRounds saved) {
  Session& first = *sessions.front();
  first.enter_checkpoint(Call::save_checkpoint);
  saved.session_steps.clear();
  for (const Session* session : sessions) saved.session_steps.push_back(session->step());
  const int64_t step = saved.session_steps.front();
  first.must_succeed("write the checkpoint", write(folder, saved));
  for (size_t f = 0; f < sessions.size(); ++f) {
    sessions[f]->save_checkpoint(folder_of(folder, step, f, sessions.size()));
  }
  std::error_code ignored;  // nothing that stays counts
  for (const Entry& entry : entries_in(folder)) {
    if (entry.step != step) fs::remove_all(entry.path, ignored);
  }
}

// Only rank 0 has the manifests, if each rank has a disk of its own.
SavedRounds load_rounds(Session& session, const std::string& folder) {
  session.enter_checkpoint(Call::load_checkpoint);
  const std::string what = "read the checkpoint";
  core::Result<SavedRounds> mine = Error{Error::Code::io, "not read"};
  core::Status status;
  if (session.rank() == 0) {
    mine = find(folder);
    if (!mine) status = mine.error();
  }
  session.must_succeed(what, status);
  const int64_t own = session.rank() == 0 ? mine.value().session_steps.front() : 0;
  const auto step = static_cast<int64_t>(session.gather(static_cast<uint64_t>(own)).front());
  if (session.rank() != 0) {
    mine = read(folder, step);
    if (!mine) status = mine.error();
  }
  session.must_succeed(what, status);
  return mine.value();
}

void load_sessions(const Sessions& sessions, const std::string& folder, const SavedRounds& saved) {
  for (size_t f = 0; f < sessions.size(); ++f) {
    sessions[f]->load_checkpoint(folder_of(folder, saved.session_steps.front(), f, sessions.size()));
  }
}

void check_fits(const SavedRounds& saved, const std::string& folder, int64_t fragments,
                const std::vector<torch::Tensor>& parameters) {
  if (saved.round.fragments != fragments) {
    refuse("the checkpoint in " + folder + " is of rounds with fragments " + std::to_string(saved.round.fragments) +
           ", and this job has fragments " + std::to_string(fragments) + "; allowed is the same number");
  }
  check_momenta(saved.momenta, parameters);
}

}  // namespace gradtune
