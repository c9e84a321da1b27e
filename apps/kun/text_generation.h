// One prompt to text in this process, for `kun complete` and `kun chat`.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli.h"
#include "runtime/engine_setup.h"

namespace kun {

struct GenerationArguments {
  int tokens_max = 256;
  double temperature = -1.0;  // < 0: the model's own
  double top_p = -1.0;
  int top_k = -1;
  std::uint64_t seed = 0;
  std::vector<std::string> stop;
  std::string speculative_config;
};
void add_generation_arguments(CLI::App& command, GenerationArguments& arguments);

struct GeneratedText {
  std::string text;
  std::string finish_reason;  // "stop", "length"
  StreamUsage usage;
  double first_token_seconds = 0.0;
  double total_seconds = 0.0;
};

// A model with an engine that serves one sequence at a time.
class TextGenerator {
 public:
  static Result<TextGenerator> open(const ModelArguments& model,
                                    const std::string& speculative_config);

  const ModelBundle& bundle() const { return *open_.bundle; }

  // `on_text` receives the text as it appears.
  Result<GeneratedText> generate(std::vector<Token> prompt, const GenerationArguments& arguments,
                                 const std::function<void(std::string_view)>& on_text) const;

 private:
  OpenModel open_;
  EngineSetup setup_;
};

}  // namespace kun
