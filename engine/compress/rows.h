// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The factories behind the table (table.cc): each source file of a compressor defines its own.
#pragma once

#include "engine/compress/compressor.h"

namespace gradtune::compress {

TableRow none();       // dense.cc
TableRow bf16();       // dense.cc
TableRow fp16();       // dense.cc
TableRow topk();       // topk.cc
TableRow efsignsgd();  // efsignsgd.cc

}  // namespace gradtune::compress
