#include "roofline_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kun {
namespace {

constexpr double kWidth = 860.0;
constexpr double kHeight = 520.0;
constexpr double kMargin = 60.0;
constexpr int kFirstDecade = 0;  // of operations a byte: 1 to 10^5
constexpr int kDecades = 5;
constexpr double kLowest = 1e10;  // operations a second
constexpr double kHighest = 2e12;

double x_of(double operations_per_byte) {
  const double share = (std::log10(std::max(operations_per_byte, 1e-3)) - kFirstDecade) / kDecades;
  return kMargin + std::clamp(share, 0.0, 1.0) * (kWidth - 2 * kMargin);
}

double y_of(double operations_per_second) {
  const double share =
      std::log(std::max(operations_per_second, 1.0) / kLowest) / std::log(kHighest / kLowest);
  return kHeight - kMargin - std::clamp(share, 0.0, 1.0) * (kHeight - 2 * kMargin);
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  }
  return result;
}

void line(double x1, double y1, double x2, double y2, const char* style, std::ostream& out) {
  out << fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, style);
}

void text(double x, double y, const char* anchor, const std::string& words, std::ostream& out) {
  out << fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(words));
}

void draw_axes(std::ostream& out) {
  const char* grid = "stroke=\"#ddd\"";
  for (int decade = kFirstDecade; decade <= kFirstDecade + kDecades; ++decade) {
    const double x = x_of(std::pow(10.0, decade));
    line(x, kMargin, x, kHeight - kMargin, grid, out);
    text(x, kHeight - kMargin + 18, "middle", fmt::format("{:.0f}", std::pow(10.0, decade)), out);
  }
  for (const double rate : {1e10, 3e10, 1e11, 3e11, 1e12}) {
    line(kMargin, y_of(rate), kWidth - kMargin, y_of(rate), grid, out);
    text(kMargin - 6, y_of(rate) + 4, "end", fmt::format("{:.0f}", rate / 1e9), out);
  }
  text(kWidth / 2, kHeight - 16, "middle", "operations for each byte from memory", out);
  text(kMargin, kMargin - 10, "start", "Gop/s", out);
}

}  // namespace

void write_roofline_svg(const std::string& title, double bytes_per_second,
                        const std::vector<RooflineCeiling>& ceilings,
                        const std::vector<RooflinePoint>& points, std::ostream& out) {
  out << fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "fill=\"white\"/>\n",
      kWidth, kHeight);
  text(kWidth / 2, 24, "middle", title, out);
  draw_axes(out);
  double highest = 0.0;
  for (const RooflineCeiling& ceiling : ceilings) {
    if (ceiling.operations_per_second <= 0.0) continue;
    highest = std::max(highest, ceiling.operations_per_second);
    const double y = y_of(ceiling.operations_per_second);
    const double knee = x_of(ceiling.operations_per_second / bytes_per_second);
    line(knee, y, kWidth - kMargin, y, "stroke=\"#a33\" stroke-width=\"1.5\"", out);
    text(kWidth - kMargin, y - 4, "end",
         fmt::format("{} {:.0f} Gop/s", ceiling.name, ceiling.operations_per_second / 1e9), out);
  }
  // The slope of memory, from the bottom of the picture to the highest ceiling.
  line(x_of(kLowest / bytes_per_second), y_of(kLowest), x_of(highest / bytes_per_second),
       y_of(highest), "stroke=\"#a33\" stroke-width=\"1.5\"", out);
  text(x_of(kLowest / bytes_per_second) + 8, y_of(kLowest) - 8, "start",
       fmt::format("memory {:.1f} GB/s", bytes_per_second / 1e9), out);
  for (const RooflinePoint& point : points) {
    out << fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"#247\" fill-opacity=\"0.7\"><title>{}: "
        "{:.1f} Gop/s</title></circle>\n",
        x_of(point.operations_per_byte), y_of(point.operations_per_second), escaped(point.name),
        point.operations_per_second / 1e9);
  }
  out << "</svg>\n";
}

}  // namespace kun
