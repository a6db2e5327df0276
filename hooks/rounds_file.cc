// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/rounds_file.h"

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <sstream>
#include <utility>

#include "hooks/refusal.h"
#include "tuner/files/file_io.h"

namespace gradtune {
namespace {

// Changes with the format.
constexpr int64_t kVersion = 3;

std::string path_in(const std::string& folder) { return folder + "/rounds.pt"; }

}  // namespace

void save_rounds(const std::string& folder, const SavedRounds& saved) {
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
  tuner::write_file_atomically(path_in(folder), text.str()).value();
}

SavedRounds load_rounds(const std::string& folder) {
  const std::string path = path_in(folder);
  const std::string text = tuner::read_file(path, INT64_MAX).value();
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(text.data(), text.size());
    torch::Tensor tensor;
    archive.read("numbers", tensor);
    TORCH_CHECK(tensor.scalar_type() == torch::kLong && tensor.numel() > 0, "its numbers are others");
    const int64_t* const numbers = tensor.data_ptr<int64_t>();
    TORCH_CHECK(numbers[0] == kVersion, "its version is ", numbers[0], ", and ", kVersion, " is needed");
    TORCH_CHECK(tensor.numel() == 8, "its numbers are others");
    SavedRounds saved{.session_step = numbers[1],
                      .dense_steps = numbers[2],
                      .rounds = numbers[3],
                      .round = {.updates = numbers[4], .delay = numbers[5], .fragments = numbers[6]}};
    for (int64_t p = 0; p < numbers[7]; ++p) {
      archive.read("momentum." + std::to_string(p), saved.momenta.emplace_back());
    }
    return saved;
  } catch (const c10::Error& error) {
    refuse(path + " holds no state of rounds: " + error.what_without_backtrace());
  }
}

void check_step(const SavedRounds& saved, int64_t session_step, const std::string& folder) {
  if (saved.session_step == session_step) return;
  refuse(path_in(folder) + " is of step " + std::to_string(saved.session_step) +
         ", and the checkpoint beside it of step " + std::to_string(session_step) +
         ", because saving did not end; allowed is a folder whose files are of one checkpoint");
}

}  // namespace gradtune
