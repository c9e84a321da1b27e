/* The C interface of bridge/, the one place where Rust libraries enter the program. Every call is
 * safe on hostile bytes: text is checked to be UTF-8, panics are caught, and every string handed
 * out must go back through kun_bridge_string_free. Handles are const once made and may be used
 * from any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const char* data; /* UTF-8, not terminated; may be null if size is 0 */
  size_t size;
} kun_bridge_view;

typedef struct {
  char* data;
  size_t size;
  size_t capacity;
} kun_bridge_string;

typedef enum {
  KUN_BRIDGE_OK = 0,
  KUN_BRIDGE_REFUSED = 1,   /* the template or its input is at fault; the text says how */
  KUN_BRIDGE_EXHAUSTED = 2, /* a limit on steps or output was reached */
  KUN_BRIDGE_PANICKED = 3   /* a bug in the bridge; the handle stays usable */
} kun_bridge_status;

typedef struct kun_template kun_template;

typedef struct {
  uint64_t steps_max;        /* one step is one instruction or 64 bytes of data made */
  uint64_t output_bytes_max; /* of the rendered text */
} kun_template_limits;

typedef struct {
  kun_bridge_view messages; /* JSON array */
  kun_bridge_view tools;    /* JSON array, or empty */
  kun_bridge_view extra;    /* JSON object of further variables, or empty */
  int64_t now;              /* Unix seconds, for strftime_now */
  int32_t add_generation_prompt;
  int32_t normalize; /* 0: messages reach the template as they are; 1: see src/messages.rs */
} kun_template_input;

/* On success *handle is set and *error is empty. */
kun_bridge_status kun_template_compile(kun_bridge_view source, kun_bridge_view bos_token,
                                       kun_bridge_view eos_token, kun_template_limits limits,
                                       kun_template** handle, kun_bridge_string* error);

/* *text is the rendering, or what went wrong. */
kun_bridge_status kun_template_render(const kun_template* handle, const kun_template_input* input,
                                      kun_bridge_string* text);

void kun_template_free(kun_template* handle);
void kun_bridge_string_free(kun_bridge_string string);

#ifdef __cplusplus
}
#endif
