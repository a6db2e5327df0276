# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
# The build writes this module (python/CMakeLists.txt): the versions of torch and of gradtune.
TORCH: str
VERSION: str
