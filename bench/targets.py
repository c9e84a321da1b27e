#!/usr/bin/env python3
"""Every row of the targets, measured end to end beside the roofline of the same minute.

    bench/targets.py MODELS [--kun build/kun] [--repeat 3] [--rows REGEX]

MODELS is a folder that holds, or receives, random weights in the shape of R1-Distill-Qwen-1.5B
(bench/make_model.py: Q4_0, Q8_0, Q4_K and BF16). A row is the median of its repeats, and each
repeat stands between two probes of the machine: shares are of their mean, so that a machine whose
speed changes by the minute does not decide. Work is counted as two operations per weight and token;
attention and sampling are extra work that the share does not credit.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess

import starts

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = "r1-distill-qwen-1.5b"
LAYERS, HIDDEN, INNER, KV_HEADS, HEAD = 28, 1536, 8960, 2, 128
VOCABULARY = 151936
LAYER_WEIGHTS = LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV_HEADS * HEAD + 3 * HIDDEN * INNER)
HEAD_WEIGHTS = VOCABULARY * HIDDEN
BYTES = {"Q4_0": 18 / 32, "Q4_K": 144 / 256, "Q6_K": 210 / 256, "Q8_0": 34 / 32, "BF16": 2}
CACHE_BYTES = 2 * LAYERS * KV_HEADS * HEAD * 2  # of one position, BF16


class Bench:
    def __init__(self, kun, models):
        self.kun, self.models = kun, models

    def file(self, kind):
        return self.models / (SHAPE if kind == "BF16" else f"{SHAPE}.{kind}.gguf")

    def ask(self, *words):
        done = subprocess.run([str(word) for word in (self.kun, "bench", *words, "--json")],
                              check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return json.loads(done.stdout)

    def peaks(self, table=None):
        return self.ask("kernels", "--filter", "(none)", *(["--kernels", table] if table else []))

    def latency(self, kind, tokens, output, users, table=None):
        return self.ask("latency", self.file(kind), "--input-len", tokens, "--output-len", output,
                        "--batch-size", users, "--kv-cache-memory-bytes", "1GiB",
                        "--weights-cache", "off", *(["--kernels", table] if table else []))


def between_probes(bench, measure, table=None):
    """What `measure` gave, and the mean of the peaks before and after it."""
    before = bench.peaks(table)
    value = measure()
    after = bench.peaks(table)
    return value, {key: (before[key] + after[key]) / 2
                   for key in ("int8_ops", "bf16_ops", "memory_bytes")}


def bytes_of_step(kind, context):
    """Bytes that one user's token must read: layers, head, cache."""
    head = BYTES["Q6_K"] if kind.startswith("Q4") else BYTES[kind]
    return LAYER_WEIGHTS * BYTES[kind] + HEAD_WEIGHTS * head + CACHE_BYTES * context


def prefill(kind, table=None):
    def row(bench):
        got, peak = between_probes(bench, lambda: bench.latency(kind, 512, 4, 1, table), table)
        limit = peak["bf16_ops" if kind == "BF16" else "int8_ops"]
        rate = got["prefill_tokens_per_s"]
        return rate, "tokens/s", 2 * LAYER_WEIGHTS * rate / limit
    return row


def one_user(kind, table=None):
    def row(bench):
        got, peak = between_probes(bench, lambda: bench.latency(kind, 128, 64, 1, table), table)
        rate = got["decode_tokens_per_s"]
        return rate, "tokens/s", bytes_of_step(kind, 160) * rate / peak["memory_bytes"]
    return row


def many_users(kind, users):
    def row(bench):
        got, peak = between_probes(bench, lambda: bench.latency(kind, 128, 48, users))
        rate = got["decode_tokens_per_s"]
        return rate, "tokens/s", 2 * (LAYER_WEIGHTS + HEAD_WEIGHTS) * rate / peak["int8_ops"]
    return row


def prediction(kind, users):
    """Measured over predicted: the mean of what `kun inspect --predict` says before and after."""
    def predict(bench):
        told = subprocess.run([bench.kun, "inspect", bench.file(kind), "--predict", "--users",
                               str(users), "--context", "152"],
                              check=True, capture_output=True, text=True).stdout
        return float(re.search(r"decode\s+([\d.]+) tokens/s", told).group(1))

    def row(bench):
        before = predict(bench)
        rate = bench.latency(kind, 128, 48, users)["decode_tokens_per_s"]
        return rate, "tokens/s", rate / ((before + predict(bench)) / 2)
    return row


def kernel(name, limit):
    def row(bench):
        got = bench.ask("kernels", "--filter", name)
        one = got["rows"][0]
        if limit == "memory":
            return one["bytes"] / one["us"] / 1e3, "GB/s", one["memory_share"]
        return one["operations"] / one["us"] / 1e3, "Gop/s", one["peak_share"]
    return row


def resident_bytes(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024


def start(bench):
    """Seconds from exec to the first token of the first answer, and memory beside the model."""
    file, pool = bench.file("Q4_0"), 256 << 20
    file.read_bytes()
    with starts.served(bench.kun, file, "--kv-cache-memory-bytes", str(pool)) as (server, seconds):
        return seconds, resident_bytes(server.pid) - weights_in_memory(bench, file)


def weights_in_memory(bench, file):
    """Bytes of the file's packed matrices, by `kun inspect`: its `auto` line."""
    told = subprocess.run([bench.kun, "inspect", file], check=True, capture_output=True, text=True)
    found = re.search(r"^\s+auto\s+([\d.]+) MiB", told.stdout, re.MULTILINE)
    return int(float(found.group(1)) * (1 << 20))


ROWS = [  # name, row, what the share is of, target
    ("prefill 512, Q4_0", prefill("Q4_0"), "int8", .68),
    ("prefill 512, Q8_0", prefill("Q8_0"), "int8", .68),
    ("prefill 512, Q4_K", prefill("Q4_K"), "int8", .60),
    ("prefill 512, BF16", prefill("BF16"), "bf16", .80),
    ("decode, 1 user, Q4_0", one_user("Q4_0"), "DRAM", .90),
    ("decode, 1 user, Q4_K", one_user("Q4_K"), "DRAM", .90),
    ("decode, 1 user, Q8_0", one_user("Q8_0"), "DRAM", .90),
    ("decode, 1 user, BF16", one_user("BF16"), "DRAM", .90),
    ("decode, 8 users, Q4_0", many_users("Q4_0", 8), "int8", .62),
    ("decode, 16 users, Q4_0", many_users("Q4_0", 16), "int8", .65),
    ("decode, 16 users, Q8_0", many_users("Q8_0", 16), "int8", .60),
    ("attention, decode at 8192", kernel("12/2 d128 context 8192 M=1", "memory"), "DRAM", .75),
    ("attention, decode at 32768", kernel("12/2 d128 context 32768 M=1", "memory"), "DRAM", .75),
    ("attention, 512 behind 8192", kernel("12/2 d128 context 8192 M=512", "peak"), "bf16", .40),
    ("prediction, 1 user, Q4_0", prediction("Q4_0", 1), "told", 1),
    ("prediction, 16 users, Q4_0", prediction("Q4_0", 16), "told", 1),
    ("prediction, 1 user, BF16", prediction("BF16", 1), "told", 1),
    ("AVX2, prefill 512, Q4_0", prefill("Q4_0", "avx2"), "int8", .50),
    ("AVX2, prefill 512, Q8_0", prefill("Q8_0", "avx2"), "int8", .50),
    ("AVX2, prefill 512, Q4_K", prefill("Q4_K", "avx2"), "int8", .50),
    ("AVX2, decode, 1 user, Q4_0", one_user("Q4_0", "avx2"), "DRAM", .90),
]


def make_models(models):
    kinds = [kind for kind in ("Q4_0", "Q8_0", "Q4_K", "BF16")
             if not Bench(None, models).file(kind).exists()]
    if kinds:
        names = ",".join("hf" if kind == "BF16" else kind for kind in kinds)
        subprocess.run(["/usr/bin/python3", ROOT / "bench" / "make_model.py", SHAPE, models,
                        "--types", names], check=True)


def print_row(name, value, share, limit, target):
    print(f"| {name:28} | {value:>16} | {share:>6} | {limit:5} | {target:>7} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--kun", type=pathlib.Path, default=ROOT / "build" / "kun")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", default="", help="only rows whose names match")
    args = parser.parse_args()
    make_models(args.models)
    bench = Bench(args.kun, args.models)

    print_row("R1-Distill-Qwen-1.5B shape", "median", "share", "of", "target")
    print(f"|{'-' * 30}|{'-' * 17}:|{'-' * 7}:|{'-' * 7}|{'-' * 8}:|")
    for name, row, limit, target in ROWS:
        if not re.search(args.rows, name):
            continue
        got = [row(bench) for _ in range(args.repeat)]
        rate = statistics.median(value for value, _, _ in got)
        share = statistics.median(part for _, _, part in got)
        print_row(name, f"{rate:.1f} {got[0][1]}", f"{share:.2f}", limit, f"{target:.2f}")
    if re.search(args.rows, "start, memory"):
        got = [start(bench) for _ in range(args.repeat)]
        seconds = statistics.median(value for value, _ in got)
        beside = statistics.median(value for _, value in got)
        print_row("start to the first token", f"{seconds:.2f} s", "", "", "1.5 s")
        print_row("memory beside weights", f"{beside / 1e6:.0f} MB", "", "", "250 MB")


if __name__ == "__main__":
    main()
