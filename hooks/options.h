// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Converts the options that a user gives (argument, variable, file) to settings. The table of options
// (option_table.h) says which there are.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "engine/core/result.h"
#include "gradtune/gradtune.h"
#include "hooks/c10d/launcher.h"
#include "hooks/settings.h"
#include "tuner/job.h"
#include "tuner/tuner.h"

namespace gradtune {

// The order is argument, variable GRADTUNE_<NAME>, the file that GRADTUNE_CONFIG names, default. Errors name the
// option, its origin, its value and the values that are allowed. An unknown GRADTUNE_ variable or key is an error
// too. `variables`: all that start with GRADTUNE_, as name=value. `timeout`: the default for that option.
core::Result<Settings> resolve(const Options& options, const std::vector<std::string>& variables,
                               std::chrono::milliseconds timeout = std::chrono::seconds(300));

// The settings that the tuner uses, alone and in the job that rank 0's driver needs. That job lacks ranks, machine
// and gradients.
tuner::TunerOptions tuner_options(const Settings& settings);
tuner::Job tuner_job(const Settings& settings);

// All variables of this process whose names start with GRADTUNE_.
std::vector<std::string> gradtune_variables();

}  // namespace gradtune
