// The part of a GenerationJob that waits for its grammar. Compiling takes a thread of its own (see
// GrammarCompiler); the job comes back to the text pool when that has answered.
#include "server/api_error.h"
#include "server/generation_job.h"
#include "text/constrain_after.h"

namespace kun {

// False: take_grammar() goes on.
bool GenerationJob::constraint_ready() {
  if (!setup_.fields.grammar || constraint_ != nullptr) return true;
  if (std::exchange(grammar_asked_, true)) return false;
  setup_.model->grammars->compile(
      *setup_.fields.grammar,
      [weak = weak_from_this(), pool = context_.pool](GrammarCompiler::Compiled result) {
        pool->resume([weak, result = std::move(result)] {
          if (const auto self = weak.lock()) self->take_grammar(result);
        });
      },
      [exchange = exchange_] {
        const auto held = exchange.lock();
        return held != nullptr && !held->closed();
      });
  return false;
}

void GenerationJob::take_grammar(const GrammarCompiler::Compiled& grammar) {
  {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<Exchange> exchange = exchange_.lock();
    if (done_ || exchange == nullptr) return;
    if (!grammar) {
      done_ = true;
      Refusal refusal;
      if (grammar.error().code() == StatusCode::kUnavailable) refusal.code = kCodeMemoryExhausted;
      ApiError error = error_from(grammar.error(), refusal);
      if (error.status == 400) error.param = setup_.fields.grammar_field;
      error.malformed = true;
      return send_error(*exchange, error);
    }
    grammar_ = *grammar;
    std::unique_ptr<TokenConstraint> constraint = (*grammar)->begin();
    if (setup_.fields.thoughts_first) {
      constraint = constrain_after(setup_.model->thoughts_end, std::move(constraint));
    }
    constraint_ = std::move(constraint);
  }
  run();
}

}  // namespace kun
