// How the memory that requests may hold is split where uses must not push each other aside.
#pragma once

#include <cstddef>

#include "base/memory_ledger.h"
#include "text/grammar_compiler.h"

namespace kun {

// What a server may hold, of a bound on its whole process.
struct MemorySplit {
  std::size_t limit_bytes = 0;    // for the ledger
  std::size_t parsing_bytes = 0;  // JSON documents, of all threads that read them
};

// `free_bytes`: what the bound leaves beside weights, caches and the like. A quarter is for JSON
// documents, which come and go in milliseconds, and a quarter stays free, for fragments of the
// heap.
MemorySplit split_budget(std::size_t free_bytes);

// Of one JSON document, under the ledger's limit.
std::size_t parsing_bytes(const MemoryLedger& memory, int thread_count);

// A quarter of the ledger's limit is for grammars, half of that for those that nobody uses.
GrammarCompilerLimits grammar_limits(const MemoryLedger& memory);

}  // namespace kun
