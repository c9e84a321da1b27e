#!/usr/bin/env python3
"""Checks of bench/make_model.py; run.sh runs this in an empty folder."""

import json
import math
import pathlib
import struct
import subprocess
import sys
import traceback

import numpy as np

ROOT = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "bench"))

from model_maker import gguf_names, shapes, tensors, values  # noqa: E402

IDS = "5,100,200,999,3,17"
# Relative error of logits against float32 weights, twice what two random layers measured: about
# 3.5 times the error of one weight (0.5 % in Q8_0, 1.8 % in Q6_K, 8 % in 4 bits).
WORST = {"F32": 1e-5, "BF16": 1e-5, "F16": 1e-5, "Q8_0": 0.04, "Q6_K": 0.13, "Q4_K": 0.5,
         "Q4_K_M": 0.5, "Q4_0": 0.6}


def output_of(*command):
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True)
    assert done.returncode == 0, f"{command}: {done.stderr.decode()[-2000:]}"
    return done.stdout


def make(*arguments):
    output_of(sys.executable, ROOT / "bench" / "make_model.py", *arguments)


def kun(*arguments):
    return output_of(ROOT / "build" / "kun", *arguments)


def logits_of(model):
    text = kun("logits", model, "--ids", IDS, "--dtype", "float32")
    return np.array(json.loads(text)["logits"], dtype=np.float64)


def formats_hold_the_same_weights(shape):
    make(shape, ".", "--types", ",".join(["hf", *WORST]), "--shard-bytes", 1 << 20)
    wanted = logits_of(shape)
    assert np.isfinite(wanted).all() and wanted.std() > 0.1, "flat or non-finite logits"
    for kind, worst in WORST.items():
        error = logits_of(f"{shape}.{kind}.gguf") - wanted
        relative = np.sqrt((error ** 2).mean()) / wanted.std()
        assert relative <= worst, f"{kind}: relative error {relative:.2g}, allowed {worst}"


def same_seed_gives_the_same_file():
    for folder in "one", "two":
        make("tiny-llama", folder, "--types", "Q4_K", "--seed", 7)
    make("tiny-llama", "three", "--types", "Q4_K", "--seed", 8)
    one, two, three = (pathlib.Path(f"{folder}/tiny-llama.Q4_K.gguf").read_bytes()
                       for folder in ("one", "two", "three"))
    assert one == two, "two runs differ"
    assert one != three, "the seed changes nothing"


def tokenizers_agree_and_round_trip():
    make("tiny-qwen2", ".", "--types", "hf,Q8_0")
    text = "hello, the inn at 3 o'clock\n\tönd 你好 🙂"
    spelled = [kun("tokenize", model, "--prompt", text)
               for model in ("tiny-qwen2", "tiny-qwen2.Q8_0.gguf")]
    assert spelled[0] == spelled[1], f"tokens differ: {spelled}"
    ids = ",".join(str(i) for i in json.loads(spelled[0]))
    assert kun("tokenize", "tiny-qwen2", "--decode", ids).decode().rstrip("\n") == text
    answer = kun("complete", "tiny-qwen2.Q8_0.gguf", "--prompt", text, "--max-tokens", 4)
    assert answer.strip(), "an empty answer"


def cuts_keep_the_rest():
    config = shapes.cut(shapes.read_shape("deepseek-v3.2"), 4, 16)
    listed = tensors.list_tensors(config)
    experts = [t for t in listed if ".experts." in t.name]
    assert len(experts) == 16 * 3, f"{len(experts)} expert matrices in one expert layer of 16"
    assert max(int(t.name.split(".")[2]) for t in listed if ".layers." in t.name) == 3


def values_are_normal():
    tensor = tensors.Tensor("x", (4096, 512), 0.02, mean=0.5)
    drawn = values.widen_bf16(values.whole(tensor, 3)).astype(np.float64)
    assert abs(drawn.mean() - 0.5) < 1e-4, f"mean {drawn.mean()}"
    assert abs(drawn.std() / 0.02 - 1) < 0.01, f"deviation {drawn.std()}"
    first = np.concatenate(list(values.chunks(tensor, 3)))[:7]
    assert (first == values.whole(tensor, 3)[:7]).all(), "chunking changes values"


# --- Against files that llama.cpp and the reference program read ---------------------------------


class GgufHeader:
    def __init__(self, path):
        self.data, self.at = path.read_bytes(), 8
        count, keys = self.take("Q"), self.take("Q")
        self.keys = {self.string(): self.value(self.take("I")) for _ in range(keys)}
        self.dims = {}
        for _ in range(count):
            name = self.string()
            self.dims[name] = tuple(self.take("Q") for _ in range(self.take("I")))
            self.take("I"), self.take("Q")

    def take(self, code):
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            element, count = self.take("I"), self.take("Q")
            return [self.value(element) for _ in range(count)]
        return self.take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?",
                          10: "Q", 11: "q", 12: "d"}[kind])


def alike(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(alike, a, b))
    return math.isclose(a, b, rel_tol=1e-6) if isinstance(a, float) else a == b


def names_are_those_of(folder):
    config = shapes.read_shape(str(folder / "config.json"))
    listed = tensors.list_tensors(config)
    data = (folder / "model.safetensors").read_bytes()
    stored = json.loads(data[8:8 + struct.unpack_from("<Q", data)[0]])
    stored.pop("__metadata__", None)
    assert {t.name: list(t.shape) for t in listed} == {
        name: entry["shape"] for name, entry in stored.items()}, "safetensors names differ"
    header = GgufHeader(folder / "model.gguf")
    made = {t.name: t.dims for t in gguf_names.list_gguf_tensors(config, listed)}
    header.dims.pop("rope_freqs.weight", None)
    assert made == header.dims, f"GGUF names differ: {set(made.items()) ^ set(header.dims.items())}"
    keys = {key: value for key, _, value in gguf_names.metadata(config, "tiny", 0).entries}
    for key, value in header.keys.items():
        if not key.startswith("tokenizer."):
            assert key in keys and alike(value, keys[key]), f"{key}: {keys.get(key)} for {value}"


def stored_models():
    found = {}
    for base in (ROOT.parent / "shared" / "data" / "tiny-models", ROOT / "tests/data/tiny-models"):
        for path in sorted(base.glob("*/model.gguf")):
            if path.parent.name.endswith("-mtp"):
                continue  # with a next-token module, which make_model.py does not write
            if (path.parent / "model.safetensors").exists():
                found[path.parent.name] = path.parent
    return sorted(found.values())


def main():
    checks = [(check.__name__, check, ()) for check in (
        values_are_normal, same_seed_gives_the_same_file, tokenizers_agree_and_round_trip,
        cuts_keep_the_rest)]
    checks += [(f"formats_hold_the_same_weights {shape}", formats_hold_the_same_weights, (shape,))
               for shape in ("tiny-qwen2", "tiny-llama")]
    checks += [(f"names_are_those_of {folder.name}", names_are_those_of, (folder,))
               for folder in stored_models()]
    failed = 0
    for name, check, arguments in checks:
        try:
            check(*arguments)
        except Exception:  # a check's own words are the report
            traceback.print_exc(limit=-1)
            print(f"FAILED: {name}")
            failed += 1
    print(f"{len(checks) - failed} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
