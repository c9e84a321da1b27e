// What the files of the extension module share: how a Status becomes a Python exception, and the
// open model as Python holds it. These files throw, because that is how nanobind raises a Python
// exception; nothing of that leaves them.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "local_llm.h"
#include "text/grammar.h"

namespace kun {

namespace nb = nanobind;

// Calls what may take the GIL. To a thread that wants it after the interpreter began to end (a
// daemon of Python's), CPython before 3.14 answers by unwinding it, and the first noexcept function
// on the way would end the process. It stands still instead until the process is gone, as newer
// interpreters have it
// (https://docs.python.org/3/c-api/init.html#cautions-regarding-runtime-finalization).
template <class Call>
auto or_stand_still(const Call& call) {
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    while (true) pause();
  }
}

// While one lives, other Python threads run.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    or_stand_still([this] { PyEval_RestoreThread(thread_); });
  }

 private:
  PyThreadState* thread_;
};

// An exception of kun.errors.
inline nb::object exception_of(const Status& status) {
  return or_stand_still([&status]() -> nb::object {
    return nb::module_::import_("kun.errors")
        .attr("from_status")(code_name(status.code()), status.message());
  });
}

[[noreturn]] inline void raise(const Status& status) {
  const nb::object error = exception_of(status);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

template <class T>
T value_of(Result<T> result) {
  if (!result) raise(result.error());
  return *std::move(result);
}

// An open model, until it is closed.
class Llm {
 public:
  explicit Llm(std::shared_ptr<LocalLlm> llm) : llm_(std::move(llm)) {}

  ~Llm() { close(); }

  std::shared_ptr<LocalLlm> get() const {
    if (llm_ == nullptr) raise(unavailable("this LLM is closed"));
    return llm_;
  }

  void close() {
    std::shared_ptr<LocalLlm> llm = std::move(llm_);
    const WithoutGil no_gil;
    if (llm != nullptr) llm->close();
    llm.reset();
  }

  bool closed() const { return llm_ == nullptr; }

 private:
  std::shared_ptr<LocalLlm> llm_;
};

// What an output must be, compiled; to be had from an Llm, to be given to its requests.
struct OutputGrammar {
  std::shared_ptr<const Grammar> grammar;
};

// `kind`: json, regex, choice, grammar (GBNF or Lark) or structural_tag, over one text or, with
// choice, several.
Result<GrammarSource> grammar_source(std::string_view kind, const std::vector<std::string>& texts);

void bind_batch(nb::module_& module);

}  // namespace kun
