#include "server/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace kun {
namespace {

std::string read_file(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

double boot_seconds() {
  const std::string text = read_file("/proc/stat");
  const std::size_t at = text.find("\nbtime ");
  if (at == std::string::npos) return 0;
  return std::strtod(text.c_str() + at + 7, nullptr);
}

}  // namespace

ProcessFigures read_process_figures() {
  ProcessFigures figures;
  // proc(5): after the command in parentheses, field 3 is next.
  const std::string stat = read_file("/proc/self/stat");
  const std::size_t command_end = stat.rfind(')');
  if (command_end != std::string::npos) {
    std::istringstream text(stat.substr(command_end + 1));
    const std::vector<std::string> fields{std::istream_iterator<std::string>(text), {}};
    const auto field = [&](std::size_t number) {
      return number - 3 < fields.size() ? std::strtod(fields[number - 3].c_str(), nullptr) : 0.0;
    };
    const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
    figures.cpu_seconds = (field(14) + field(15)) / ticks;
    figures.start_seconds = boot_seconds() + field(22) / ticks;
    figures.virtual_bytes = field(23);
    figures.resident_bytes = field(24) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  }
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (!error) figures.open_files = static_cast<double>(std::distance(begin(files), end(files)));
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    figures.open_files_max = static_cast<double>(limit.rlim_cur);
  }
  return figures;
}

}  // namespace kun
