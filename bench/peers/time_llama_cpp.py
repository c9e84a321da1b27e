#!/usr/bin/env python3
"""Times one prefill and one decode with llama.cpp (through llama-cpp-python) and prints JSON.

Run by compare.py in the peer's own virtual environment. Uses the low-level interface, so that
neither tokenizing nor sampling is in the timed region.
"""

import argparse
import json
import time

import llama_cpp


@llama_cpp.llama_log_callback
def silent(level, text, data):
    """Keeps the library from telling its story on standard error."""


def fill(batch, tokens, first_position, last_only=True):
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i] = token
        batch.pos[i] = first_position + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = not last_only or i + 1 == len(tokens)


def decode(context, batch):
    if llama_cpp.llama_decode(context, batch) != 0:
        raise SystemExit("llama_decode failed")
    llama_cpp.llama_get_logits_ith(context, -1)  # waits for the result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--input-len", type=int, required=True)
    parser.add_argument("--output-len", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()

    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_load_model_from_file(
        args.model.encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = args.input_len + args.output_len + 8
    params.n_batch = params.n_ubatch = max(512, args.input_len)
    params.n_threads = params.n_threads_batch = args.threads
    context = llama_cpp.llama_new_context_with_model(model, params)
    batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
    prompt = [100 + i * 7 % 4000 for i in range(args.input_len)]

    fill(batch, prompt[:8], 0)  # warm up: first touch of weights and buffers
    decode(context, batch)
    memory = llama_cpp.llama_get_memory(context)
    llama_cpp.llama_memory_clear(memory, True)

    start = time.perf_counter()
    fill(batch, prompt, 0)
    decode(context, batch)
    prefilled = time.perf_counter()
    for i in range(args.output_len):
        fill(batch, [200 + i % 1000], args.input_len + i)
        decode(context, batch)
    end = time.perf_counter()
    print(json.dumps({
        "prefill_tokens_per_s": args.input_len / (prefilled - start),
        "decode_tokens_per_s": args.output_len / (end - prefilled),
    }))


if __name__ == "__main__":
    main()
