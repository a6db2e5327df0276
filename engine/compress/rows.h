// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The factories behind the table (table.cc): each source file of a compressor defines its own.
#pragma once

#include "engine/compress/compressor.h"

namespace gradtune::compress {

TableRow none();        // dense.cc
TableRow bf16();        // dense.cc
TableRow fp16();        // dense.cc
TableRow packed();      // packed.cc
TableRow bf16packed();  // packed.cc
TableRow topk();        // topk.cc
TableRow threshk();     // topk.cc
TableRow dgc();         // topk.cc
TableRow efsignsgd();   // signs.cc
TableRow onebit();      // signs.cc
TableRow signsgd();     // signs.cc
TableRow signum();      // signs.cc
TableRow int8();        // block_codes.cc, and so are those that follow
TableRow int8s();
TableRow fp8e4m3();
TableRow fp8e5m2();
TableRow natural();
TableRow terngrad();
TableRow qsgd();
TableRow powersgd();  // powersgd.cc
TableRow randk();     // randk.cc
TableRow thc();       // thc.cc

}  // namespace gradtune::compress
