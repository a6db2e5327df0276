// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Lines through durations at several sizes. Candidate lines pass through the typical value at two sizes; the one with
// the least total relative error wins, so that single slow steps do not matter. No line falls with the size, and each
// says how far it was from its samples.
#pragma once

#include <optional>
#include <vector>

namespace gradtune::policies {

// y = fixed + unit * x, both at least 0.
struct Line {
  double fixed = 0, unit = 0;

  double at(double x) const { return fixed + unit * x; }
};
struct Point {
  double x = 0, y = 0;
};

// An expected fixed part counts as one more point, whose error is the logarithm of the ratio, up to a limit: it decides
// where the points have one size, or are too large to show a fixed part. A value that is expected far beyond the points
// counts as a few points there. Points of one x count as their quantile.
struct LineFit {
  double expected_fixed = 0;
  double least_unit = 0;  // a line that rises less is none
  std::optional<Point> expected_far = {};
  double quantile = 0.5;
};
Line fit_line(std::vector<Point> points, const LineFit& how = {});

// What a rate was fitted to.
struct RateQuality {
  int samples = 0;   // 0: it is the prior's
  double error = 0;  // median of |measured - fitted| / fitted

  // Of the rate, relatively, as if samples were independent and normal. Nothing is known of a prior's.
  double standard_error() const;
};
// Of at least one point.
RateQuality quality_of(const Line& line, const std::vector<Point>& points);

}  // namespace gradtune::policies
