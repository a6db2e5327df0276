# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
#
# The sources of engine/compress/cuda, for nvcc and for the emulator of the tests.
set(gradtune_kernels
  block_codes.cu
  dense.cu
  device_compressor.cu
  int_packed.cu
  packed.cu
  powersgd.cu
  randk.cu
  signs.cu
  sparse.cu
  thc.cu
  topk.cu)
set(gradtune_kernel_hosts
  table.cc)
