// The model behind `kun serve`, for commands that answer the same requests in another way: the
// flags that are about model and engine, and what they open.
#pragma once

#include <functional>
#include <memory>

#include "cli.h"
#include "runtime/engine_setup.h"
#include "server/server.h"

namespace kun {

// Members are destroyed in reverse: the engine ends before its model goes.
struct ModelToServe {
  OpenModel open;
  EngineSetup setup;
  ServedModel served;
  ServerOptions options;
  int sequences_running_max = 0;
};

using OpenModelToServe = std::function<Result<std::unique_ptr<ModelToServe>>()>;

// Adds the flags; what is returned loads the model once they are parsed.
OpenModelToServe add_serve_model_flags(CLI::App& command);

}  // namespace kun
