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

/* --- Grammars: which tokens may come next ------------------------------------------------------
 */

typedef struct kun_vocabulary kun_vocabulary;
typedef struct kun_grammar kun_grammar;             /* const, any thread */
typedef struct kun_grammar_state kun_grammar_state; /* one thread at a time */

typedef struct {
  const uint8_t* bytes;    /* what each token stands for, one behind the other */
  const uint32_t* offsets; /* count + 1 of them, ascending: token i is [offsets[i], offsets[i+1]) */
  const uint8_t* special;  /* count flags: its bytes are a name, and never text */
  size_t count;
} kun_tokens;

kun_bridge_status kun_vocabulary_create(const kun_tokens* tokens, kun_vocabulary** handle,
                                        kun_bridge_string* error);
void kun_vocabulary_free(kun_vocabulary* handle);

typedef enum { KUN_GRAMMAR_JSON = 0, KUN_GRAMMAR_REGEX = 1, KUN_GRAMMAR_LARK = 2 } kun_grammar_kind;

typedef struct {
  int32_t kind;
  kun_bridge_view text;           /* regular expression or Lark; for JSON empty */
  const kun_bridge_view* schemas; /* JSON: the one; Lark: what it calls @schema_0, @schema_1... */
  size_t schema_count;
  kun_bridge_view whitespace; /* regular expression between the parts of JSON; empty: a default */
  int32_t compact;            /* no white space in JSON at all */
  int32_t no_additional_properties; /* where a schema says nothing of them */
} kun_grammar_source;

typedef struct {
  uint64_t compile_steps_max;
  uint64_t mask_steps_max;   /* for one mask */
  uint64_t symbols_max;      /* of the grammar */
  uint64_t lexer_states_max; /* shared by all states of a grammar; one takes 1 to 2 KB */
} kun_grammar_limits;

/* The vocabulary must outlive what is made of it no longer than the call. */
kun_bridge_status kun_grammar_compile(const kun_vocabulary* vocabulary,
                                      const kun_grammar_source* source, kun_grammar_limits limits,
                                      const kun_grammar** handle, kun_bridge_string* error);
/* An estimate of what it holds now; grows with use. SIZE_MAX: its states have passed a limit that
 * they share, and new ones would fail as well. */
size_t kun_grammar_bytes(const kun_grammar* grammar);
void kun_grammar_free(const kun_grammar* grammar);

/* Null only after a bug in the bridge. */
kun_grammar_state* kun_grammar_state_create(const kun_grammar* grammar);
kun_grammar_state* kun_grammar_state_clone(const kun_grammar_state* state);
/* Bit i % 32 of word i / 32 tells whether token i may come next. */
kun_bridge_status kun_grammar_state_mask(kun_grammar_state* state, uint32_t* bits,
                                         size_t word_count, kun_bridge_string* error);
kun_bridge_status kun_grammar_state_consume(kun_grammar_state* state, uint32_t token,
                                            kun_bridge_string* error);
/* Takes the last `count` tokens back. */
kun_bridge_status kun_grammar_state_rollback(kun_grammar_state* state, size_t count,
                                             kun_bridge_string* error);
/* 0: more must come; 1: the text may end here; 2: nothing can follow. */
int32_t kun_grammar_state_end(kun_grammar_state* state);
void kun_grammar_state_free(kun_grammar_state* state);

void kun_bridge_string_free(kun_bridge_string string);

#ifdef __cplusplus
}
#endif
