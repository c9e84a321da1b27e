// Draws kernels under the roofline of the machine they ran on.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace kun {

struct RooflinePoint {
  std::string name;
  double operations_per_byte = 0.0;
  double operations_per_second = 0.0;
};

struct RooflineCeiling {
  std::string name;  // "int8"
  double operations_per_second = 0.0;
};

// Both axes logarithmic: operations a byte against operations a second. Points carry their names as
// tooltips; `title` says what ran where and when.
void write_roofline_svg(const std::string& title, double bytes_per_second,
                        const std::vector<RooflineCeiling>& ceilings,
                        const std::vector<RooflinePoint>& points, std::ostream& out);

}  // namespace kun
