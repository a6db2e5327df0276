// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/policies/affine_cost.h"

#include <cmath>

namespace gradtune::policies::testing {

AffineCost random_cost(core::Rng& rng, int ranks) {
  // Log-uniform between the two.
  const auto draw = [&](double least, double most) { return least * std::pow(most / least, rng.uniform()); };
  const double size = ranks;
  const double latency_us = draw(5, 500), link_us = draw(1e-4, 1e-2), ratio = draw(0.01, 0.5);
  const double fixed_us = draw(2, 200), encode_us = draw(1e-4, 3e-3), decode_us = draw(1e-5, 1e-3), slower = draw(1, 4);
  AffineCost::Row plain, device, host;
  plain.fixed_us = {0, 0, 2 * (size - 1) * latency_us, 0};
  plain.us_per_element = {0, 0, 2 * (size - 1) / size * link_us, 0};
  device.fixed_us = {fixed_us, 0, (size - 1) * latency_us, size * fixed_us / 4};
  device.us_per_element = {encode_us, 0, (size - 1) * ratio * link_us, size * decode_us};
  device.on_host = 2;
  host.fixed_us = {0, slower * fixed_us, (size - 1) * latency_us, size * fixed_us / 4};
  host.us_per_element = {0, slower * encode_us, (size - 1) * ratio * link_us, size * decode_us};
  return AffineCost({plain, device, host});
}

}  // namespace gradtune::policies::testing
