// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A part of a model that has a session of its own. In training in rounds, fragments are exchanged one after the other,
// each beside a part of a round's updates (Douillard et al., Streaming DiLoCo, 2025, arXiv 2501.18512).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hooks/model.h"
#include "hooks/named_tensors.h"

namespace gradtune {

struct Fragment {
  int64_t number = 0, count = 1;

  bool is_first() const { return number == 0; }
  bool is_last() const { return number + 1 == count; }
};

// Throws an error if the model has fewer trained parameters than that.
void check_fragments(int64_t fragments, size_t parameters);

// The names of the parameters that are not in the fragment. The trainable parameters are divided in their order, into
// parts of about the same number of elements; the others are in the first fragment. Throws as check_fragments() does.
std::vector<std::string> outside(const Fragment& fragment, const std::vector<NamedTensor>& parameters);

// The fragment of a model that make(with_buffers, ignored) returns, see ModuleModel. The last fragment has the buffers,
// so that they are sent when a round ends.
template <typename Make>
std::unique_ptr<Model> model_of(const Fragment& fragment, bool with_buffers, std::vector<std::string> ignored,
                                const Make& make) {
  if (fragment.count == 1) return make(with_buffers, ignored);
  for (std::string& name : outside(fragment, make(false, ignored)->parameters())) ignored.push_back(std::move(name));
  return make(with_buffers && fragment.is_last(), ignored);
}

// The files of a fragment, for paths that the program gave, with commas between them: the same for the first one, and
// then "job.fragment-2.jsonl" for "job.jsonl".
std::string files_of(const Fragment& fragment, const std::string& paths);

}  // namespace gradtune
