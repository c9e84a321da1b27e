// What answers look like, as JSON schemas for /openapi.json. Requests describe themselves, for
// their readers write down what they ask for; writers do not, so that a test holds answers to
// these.
#pragma once

#include <string_view>

namespace kun {

// The members of the document's `components.schemas`, an object as JSON text.
std::string_view answer_schemas();

// The name among them of what a route answers with 200; empty: it has no schema of its own.
// `path` is the document's, with {id}.
std::string_view answer_schema(std::string_view method, std::string_view path);

// What a field of requests holds where its type alone says little: members of its schema as JSON
// text, without the braces. Empty: nothing is known beyond the type.
std::string_view field_shape(std::string_view name);

// The name of what a route answers when something is wrong.
std::string_view error_schema(std::string_view path);

}  // namespace kun
