#!/usr/bin/env python3
"""Kun's server against llama.cpp's, same GGUF file, same threads, streaming clients, in pairs.

    bench/peers/serve.py MODEL.gguf [--threads 2] [--pairs 3] [--clients 16] [--requests 32]

Two loads: prompts of 128 tokens with 64 outputs each, then prompts that share 512 tokens and
differ in 54. Both servers run one after the other in every pair; what counts is the median of the
pairs' ratios. `llama-server` is taken from $LLAMA_SERVER, or built from the sources in
llama-cpp-python's package on PyPI (half an hour the first time).
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOME = pathlib.Path(os.environ.get("KUN_HOME", pathlib.Path.home() / ".cache" / "kun"))
LOADS = {"own prompts of 128": ["--input-len", 128, "--output-len", 64],
         "512 shared, 54 own": ["--prefix-len", 512, "--input-len", 54, "--output-len", 64]}
CMAKE = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF",
         "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
         "-DBUILD_SHARED_LIBS=OFF"]


def llama_server():
    given = os.environ.get("LLAMA_SERVER")
    if given:
        return given
    folder = HOME / "peers" / "llama-server"
    program = folder / "build" / "bin" / "llama-server"
    if not program.exists():
        print("building llama-server", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        wanted = (HERE / "llama_cpp.txt").read_text().split()[0]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary",
                        ":all:", wanted, "-d", folder], check=True)
        package = next(folder.glob("llama_cpp_python-*.tar.gz"))
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="data")
        source = folder / package.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
        subprocess.run(["cmake", "-S", source, "-B", folder / "build", *CMAKE], check=True)
        subprocess.run(["cmake", "--build", folder / "build", "--target", "llama-server"],
                       check=True)
    return program


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure(command, kun, load, args):
    """Starts the server, lets the clients of `kun bench serve` run, stops it."""
    port = free_port()
    server = subprocess.Popen([*map(str, command), "--port", str(port)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        began = time.monotonic()
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() - began > 120:
                    raise SystemExit(f"{command[0]} did not start") from None
                time.sleep(0.1)
        clients = [kun, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--model", "m",
                   "--num-prompts", args.requests, "--max-concurrency", args.clients, *load,
                   "--json"]
        done = subprocess.run([str(word) for word in clients], check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--kun", type=pathlib.Path, default=ROOT / "build" / "kun")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32)
    args = parser.parse_args()

    peer = [llama_server(), "-m", args.model, "-a", "m", "-t", args.threads, "-tb", args.threads,
            "-np", args.clients, "-c", 1024 * args.clients]
    ours = [args.kun, "serve", args.model, "--served-model-name", "m", "--threads", args.threads,
            "--kv-cache-memory-bytes", "2GiB"]
    for name, load in LOADS.items():
        pairs = []
        for _ in range(args.pairs):
            theirs = measure(peer, args.kun, load, args)
            pairs.append((measure(ours, args.kun, load, args), theirs))
        print_load(name, pairs)


def print_load(name, pairs):
    print(f"{name}: medians of {len(pairs)} pairs")
    print(f"| {'':30} | {'kun':>9} | {'llama-server':>12} | {'ratio':>6} |")
    print(f"|{'-' * 32}|{'-' * 10}:|{'-' * 13}:|{'-' * 7}:|")
    for key in pairs[0][0]:
        if not all(isinstance(side.get(key), (int, float)) for pair in pairs for side in pair):
            continue
        mine = statistics.median(pair[0][key] for pair in pairs)
        theirs = statistics.median(pair[1][key] for pair in pairs)
        ratio = statistics.median(pair[0][key] / pair[1][key] if pair[1][key] else 0
                                  for pair in pairs)
        print(f"| {key:30} | {mine:9.1f} | {theirs:12.1f} | {ratio:6.2f} |", flush=True)


if __name__ == "__main__":
    main()
