// What /metrics shows: vLLM's names, so that existing dashboards work, collected from the engine's
// figures and from what the server itself sees of every request.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/generator.h"
#include "server/served_model.h"

namespace kun {

// A choice that has ended. Times in seconds.
struct FinishedChoice {
  FinishReason reason = FinishReason::kStop;
  int prompt_count = 0;
  int cached_count = 0;
  int output_count = 0;
  double total_seconds = 0.0;    // from the arrival of the request
  double queue_seconds = 0.0;    // given to the engine, not yet running
  double prefill_seconds = 0.0;  // running, up to the first token
  double decode_seconds = 0.0;   // first token to last
};

// Thread-safe.
class ServerMetrics {
 public:
  ServerMetrics();
  ~ServerMetrics();

  // Before this only HTTP and process figures are shown.
  void set_model(const ServedModel& model);

  void request_admitted(int choice_count, int output_count_max);
  // `output_count`: of the longest of its choices.
  void request_finished(int output_count);
  void first_token(double seconds);
  void inter_token(double seconds);
  void choice_finished(const FinishedChoice& choice);
  // `route` is the pattern of the route, not what the client sent: labels must be few.
  void answered(std::string_view route, std::string_view method, int status, double seconds);

  // Prometheus text format 0.0.4. `stats` is null while there is no model.
  std::string page(const EngineStats* stats) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kun
