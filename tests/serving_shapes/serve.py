#!/usr/bin/env python3
"""Serves models of real layer shapes, random weights and few layers to 8 users at once.

    /usr/bin/python3 tests/serving_shapes/serve.py [--kun build/kun] [--shapes NAME,...] [--small]

For each shape a checkpoint is made (bench/make_model.py), served, and asked by every user alone and
by all together, over prompts that share a beginning and are long enough for sparse attention,
windows and compressed caches to work. What a user gets must be the same tokens with the same log
probabilities, to the last bit, both times. Widths are the released models'; layers, experts,
vocabulary and the number of attended entries are cut so that a machine with 16 GB runs each in
minutes; with --small, in seconds. Prints tokens per second of the crowd.
"""

import argparse
import concurrent.futures
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from model_maker import shapes  # noqa: E402

USERS = 8
OUTPUT_TOKENS = 24

# Shape: (base, changes, type of file).
SHAPES = {
    "v2-lite": ("deepseek-v2-lite", {"num_hidden_layers": 2}, "Q4_0"),
    "v2-lite-hf": ("deepseek-v2-lite", {"num_hidden_layers": 2, "n_routed_experts": 16}, "hf"),
    "v3.2": ("deepseek-v3.2", {"num_hidden_layers": 2, "first_k_dense_replace": 1,
                               "intermediate_size": 4096, "n_routed_experts": 16,
                               "index_topk": 256}, "Q4_0"),
    "v4": ("deepseek-v4-flash", {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128],
                                 "num_hash_layers": 1, "n_routed_experts": 8,
                                 "index_topk": 64}, "hf"),
    "distill-qwen-7b": ("r1-distill-qwen-7b", {"num_hidden_layers": 2}, "Q4_0"),
    "distill-llama-8b": ("llama-3.1-8b", {"num_hidden_layers": 2}, "Q4_0"),
}
# What --small makes of them: half the width and a handful of experts.
SMALL = {
    "v2-lite": {"hidden_size": 1024, "n_routed_experts": 8, "intermediate_size": 2048},
    "v3.2": {"hidden_size": 1024, "n_routed_experts": 16, "intermediate_size": 1024,
             "moe_intermediate_size": 512, "num_attention_heads": 16, "num_key_value_heads": 16},
    "v4": {"hidden_size": 1024, "moe_intermediate_size": 512, "num_attention_heads": 16,
           "o_groups": 2},
}
VOCABULARY = 8192


def make_model(name, folder, small):
    base, changes, kind = SHAPES[name]
    config = shapes.read_shape(base) | changes | {"vocab_size": VOCABULARY}
    config |= {"bos_token_id": VOCABULARY - 2, "eos_token_id": VOCABULARY - 1}
    if small:
        config |= SMALL[name] | {"vocab_size": 1024, "bos_token_id": 1022, "eos_token_id": 1023}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "bench" / "make_model.py", path, folder, "--types", kind,
                    "--name", name], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return folder / (name if kind == "hf" else f"{name}.{kind}.gguf")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One `kun serve`, on a port of the system's choice."""

    def __init__(self, kun, model):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [kun, "serve", model, "--port", str(port), "--served-model-name", "shape",
             "--kv-cache-memory-bytes", str(1 << 29), "--max-model-len", "4096",
             "--weights-cache", "off"], stderr=subprocess.DEVNULL)

    def __enter__(self):
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit("the server ended while loading")
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=2):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise SystemExit("the server did not become ready")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)

    def complete(self, prompt):
        body = {"model": "shape", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0,
                "ignore_eos": True, "logprobs": 1}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            parsed = json.load(answer)
        choice = parsed["choices"][0]
        if parsed["usage"]["completion_tokens"] != OUTPUT_TOKENS:
            raise SystemExit(f"{parsed['usage']} where {OUTPUT_TOKENS} tokens were asked for")
        return list(zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]))


def prompts(small):
    """Of different lengths; pairs share their beginning."""
    line = "The quick brown fox jumps over the lazy dog, and the dog does not mind. "
    lines = [1 + (user // 2 if small else user) for user in range(USERS)]
    return [f"Reader {user // 2}: {line * lines[user]}Chapter {user}." for user in range(USERS)]


def check_shape(kun, name, folder, small):
    model = make_model(name, folder, small)
    with Server(kun, model) as server:
        alone = [server.complete(prompt) for prompt in prompts(small)]
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(USERS) as pool:
            together = list(pool.map(server.complete, prompts(small)))
        seconds = time.monotonic() - start
    different = [user for user in range(USERS) if alone[user] != together[user]]
    print(f"{name}: {USERS} users, {USERS * OUTPUT_TOKENS / seconds:.1f} tokens/s together, "
          f"{'same bits as alone' if not different else f'users {different} DIFFER'}", flush=True)
    return not different


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kun", type=pathlib.Path, default=ROOT / "build" / "kun")
    parser.add_argument("--shapes", help="comma-separated; default: all")
    parser.add_argument("--small", action="store_true", help="narrower, in seconds")
    parser.add_argument("--keep", type=pathlib.Path, help="make the models here, and leave them")
    args = parser.parse_args()
    names = args.shapes.split(",") if args.shapes else list(SMALL if args.small else SHAPES)
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            if args.keep is not None:
                args.keep.mkdir(parents=True, exist_ok=True)
            place = args.keep if args.keep is not None else pathlib.Path(folder)
            failed += not check_shape(args.kun, name, place, args.small)
    print(f"{len(names) - failed} passed, {failed} failed")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
