// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Text for pages: HTML that is also XML, so that any parser can check it, and SVG pictures. Names that come from a
// job are text and never markup: all of them pass escape().
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace gradtune::tuner {

// For text and for attributes in double quotes. Characters that cannot be shown (files/printable.h) become U+FFFD.
std::string escape(std::string_view text);

// A picture of a fixed size in its own units, which the page scales. Coordinates that are not finite count as 0.
// Classes of elements are named in the page's style (page_style.h).
class Svg {
 public:
  // `label` describes it for people who cannot see it.
  Svg(double width, double height, std::string_view label);

  void rect(double x, double y, double width, double height, std::string_view style, std::string_view title = "");
  void line(double x1, double y1, double x2, double y2, std::string_view style);
  void circle(double x, double y, double radius, std::string_view style, std::string_view title = "");
  void path(std::string_view data, std::string_view style);
  enum class Anchor { start, middle, end };
  void text(double x, double y, Anchor anchor, std::string_view style, std::string_view what);

  std::string str() const { return text_ + "</svg>"; }

 private:
  std::string text_;
};

// A coordinate as short as it can be: "12", "12.5".
std::string coordinate(double value);

// Maps data to a picture's units.
class Scale {
 public:
  Scale(double least, double most, double from, double to);
  double operator()(double value) const;  // values outside of the data's range map to its ends
  double least() const { return least_; }
  double most() const { return most_; }

 private:
  double least_, most_, from_, to_;
};

// About this many round values from least to most.
std::vector<double> ticks(double least, double most, int about);

// Cells are markup already.
using Cells = std::vector<std::string>;
// Columns whose head begins with '#' hold numbers.
std::string table(std::initializer_list<std::string_view> heads, const std::vector<Cells>& rows);

}  // namespace gradtune::tuner
