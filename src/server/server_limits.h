// Every bound of the server, in one place and with a name, so that `kun serve --help` can print
// them and an operator can say which one a client ran into.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace kun {

struct ServerLimits {
  // Connections.
  int connections_max = 4096;  // one more is answered with 503
  int listen_backlog = 1024;
  std::chrono::milliseconds idle_timeout{75'000};        // between requests of a connection
  std::chrono::milliseconds header_timeout{10'000};      // first byte to end of header
  std::chrono::milliseconds body_timeout{60'000};        // end of header to end of body
  std::chrono::milliseconds write_timeout{30'000};       // for the client to take 64 KiB
  std::chrono::milliseconds keepalive_interval{10'000};  // between SSE comments of a silent stream

  // For requests that name none, from their arrival; 0: none.
  std::chrono::milliseconds ttft_slo{0};
  std::chrono::milliseconds tpot_slo{0};
  std::chrono::milliseconds timeout{0};

  // One request.
  std::size_t header_bytes_max = 32U << 10U;
  std::size_t body_bytes_max = 16U << 20U;
  std::size_t bodies_bytes_max = 256U << 20U;  // of all requests being read together
  int json_depth_max = 32;
  std::size_t json_bytes_max = 192U << 20U;  // memory of one parsed body
  int messages_max = 8192;
  int tools_max = 512;
  int prompts_max = 256;            // in one completions request
  int embedding_inputs_max = 2048;  // in one request of embeddings, or each side of a score
  int choices_max = 128;            // `n`
  int stop_strings_max = 16;
  int stop_string_bytes_max = 1024;
  int stop_tokens_max = 64;
  int logit_bias_max = 1024;
  int logprobs_max = 20;

  // Work in progress.
  int text_queue_max = 1024;  // requests waiting for the text pool; one more is answered with 429
  std::size_t answer_bytes_max = 256U << 20U;    // of an answer in one piece, as far as can be told
  std::size_t pending_bytes_max = 256U << 10U;   // unsent output after which a stream pauses
  int responses_max = 1024;                      // answers of /v1/responses that are kept
  std::size_t responses_bytes_max = 64U << 20U;  // of them together
  int tokens_at_once_max = 256;  // of one request, made text before others have their turn
};

// One line per bound: "connections_max  4096".
std::string describe(const ServerLimits& limits);

}  // namespace kun
