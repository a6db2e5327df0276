// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The places of a bucket's operations, and the spaces that they work in. Both depend on the kernels that a device has
// and on the communicators. Private to program.cc.
#pragma once

#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/option.h"
#include "engine/core/space.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// The instances of a codec in each space; null if programs do not need it. The host's always exists.
using Codec = core::PerSpace<const compress::Compressor*>;

class Placement {
 public:
  // `codecs` are those of the option, `gradient` is the space of the bucket's gradient.
  Placement(const std::vector<Codec>& codecs, const Platform& platform, core::Space gradient)
      : codecs_(codecs), platform_(platform), gradient_(gradient) {}

  // The place of a step: if the option places it on a device that has no kernels for it, the host does it.
  core::Place place_of(const core::Step& step) const;
  // The place of operations without a codec.
  core::Place own_place() const;
  core::Place place_in(core::Space space) const { return space == gradient_ ? core::Place::device : core::Place::host; }

  core::Space space_of(core::Place place) const { return place == core::Place::host ? core::Space::host : gradient_; }
  core::Space space_of(core::Level level) const {
    return platform_.collectives_in ? platform_.collectives_in(level) : core::Space::host;
  }

 private:
  const std::vector<Codec>& codecs_;
  const Platform& platform_;
  const core::Space gradient_;
};

}  // namespace gradtune::exec
