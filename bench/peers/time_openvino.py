#!/usr/bin/env python3
"""Times one prefill and one decode with OpenVINO GenAI, which reads GGUF files, and prints JSON.

Run by compare.py in the peer's own virtual environment. The first prompt compiles and warms up; the
second is another one, so that the peer's prefix cache does not answer.
"""

import argparse
import json

import numpy
import openvino
import openvino_genai


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--input-len", type=int, required=True)
    parser.add_argument("--output-len", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()

    pipeline = openvino_genai.LLMPipeline(args.model, "CPU", INFERENCE_NUM_THREADS=args.threads)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = args.output_len
    config.ignore_eos = True
    for first in (300, 100):
        ids = numpy.array([[first + i * 7 % 4000 for i in range(args.input_len)]], numpy.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids),
                                                openvino.Tensor(numpy.ones_like(ids)))
        metrics = pipeline.generate(inputs, config).perf_metrics
    print(json.dumps({
        "prefill_tokens_per_s": 1000 * args.input_len / metrics.get_ttft().mean,
        "decode_tokens_per_s": 1000 / metrics.get_tpot().mean,
    }))


if __name__ == "__main__":
    main()
