// The program's log: lines with time and level on standard error. Thread-safe.
#pragma once

#include <string_view>

namespace kun {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lines below `level` are dropped. The default is kInfo.
void set_log_level(LogLevel level);
void log_line(LogLevel level, std::string_view line);

}  // namespace kun

// LOG(kInfo, fmt::format("loaded {} tensors", count))
#define LOG(level, line) ::kun::log_line(::kun::LogLevel::level, (line))
