// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The style of report pages: CSS for phones and screens, light and dark. Colours are those of Okabe and Ito (Color
// Universal Design, 2008), which most colour-blind readers can tell apart. They are darker or lighter if the
// background requires it.
#pragma once

#include <string_view>

namespace gradtune::tuner {

std::string_view page_style();

}  // namespace gradtune::tuner
