// The part of a request that asks for a beam search, and the stop strings of one: they must end a
// hypothesis while the search runs, so that it is judged by what the client will see.
#pragma once

#include <memory>
#include <string>

#include "plan/beam_params.h"
#include "server/choice_text.h"
#include "server/generation_fields.h"

namespace kun {

// use_beam_search, length_penalty and early_stopping; `best_of`, or `n`, is the width. To be called
// when all else is read: what does not go with it is refused. Problems are left in `reader`.
void read_beam_search(FieldReader& reader, GenerationFields& fields);

// Ends an output where one of the stop strings is complete; not before `output_count_min` tokens.
// The tokenizer of `options` must outlive the watch.
std::shared_ptr<const OutputWatch> make_stop_watch(const ChoiceText::Options& options,
                                                   int output_count_min);

}  // namespace kun
