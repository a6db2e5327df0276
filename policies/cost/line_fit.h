// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Fits lines through durations at several sizes. Candidate lines pass through the typical value at two sizes. The
// one with the least total relative error wins, so single slow steps do not matter. No line falls with the size, and
// each has an error that describes its distance from the samples.
#pragma once

#include <optional>
#include <vector>

namespace gradtune::policies {

// y = fixed + unit * x, both coefficients at least 0.
struct Line {
  double fixed = 0, unit = 0;

  double at(double x) const { return fixed + unit * x; }
};
struct Point {
  double x = 0, y = 0;
};

// An expected fixed part counts as one more point, whose error is the logarithm of the ratio, up to a limit. It
// decides if the points have one size, or are too large to show a fixed part. A value that is expected far beyond
// the points counts as a few points there. Points of equal x count as their quantile.
struct LineFit {
  double expected_fixed = 0;
  double least_unit = 0;  // lines with a smaller slope are not allowed
  std::optional<Point> expected_far = {};
  double quantile = 0.5;
};
Line fit_line(std::vector<Point> points, const LineFit& how = {});

// The samples of a rate, and the quality of the fit.
struct RateQuality {
  int samples = 0;   // 0: the rate is the prior's
  double error = 0;  // median of |measured - fitted| / fitted

  // The relative standard error of the rate, as if samples were independent and normal. Unknown for a prior.
  double standard_error() const;
};
// Needs at least one point.
RateQuality quality_of(const Line& line, const std::vector<Point>& points);

}  // namespace gradtune::policies
