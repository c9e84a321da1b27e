// CHECK guards what only a bug can break. It never judges user input: that is Status's job.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace kun {

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace kun

#define CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::kun::check_failed(#condition, __FILE__, __LINE__))

// As CHECK, for hot paths: off in release builds.
#ifdef NDEBUG
#define DCHECK(condition) static_cast<void>(sizeof(!(condition)))
#else
#define DCHECK(condition) CHECK(condition)
#endif
