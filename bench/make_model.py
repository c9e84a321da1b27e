#!/usr/bin/env python3
"""Writes a model with random weights in the shape of a released one: for measuring speed.

    bench/make_model.py SHAPE FOLDER [--types hf,Q4_0,Q8_0,...] [--layers N] [--experts N]
                        [--next-token]

SHAPE is a name (--list) or the path of a config.json. FOLDER receives SHAPE/ (Hugging Face, BF16,
sharded) and SHAPE.TYPE.gguf, all from the same seed: they hold the same weights up to the format's
rounding. Both have a byte-level tokenizer and a chat template, so that they can be served. Types:
hf, F32, F16, BF16, Q8_0, Q6_K, Q4_K, Q4_K_M, Q4_0; as in llama.cpp's files, the output matrix of
the 4-bit ones is Q6_K and what does not fit a block gets the next format that does.
"""

import argparse
import pathlib
import sys
import time

try:
    import numpy  # noqa: F401
except ImportError:
    raise SystemExit("make_model: numpy is missing; install the package python3-numpy and run this"
                     " with /usr/bin/python3, or use a virtual environment with numpy") from None

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from model_maker import blocks, files, shapes, tensors, tokenizer  # noqa: E402

KINDS = ["hf", "Q4_K_M"] + [kind for kind in blocks.TYPES if kind not in ("I32", "Q5_0")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="?")
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--list", action="store_true", help="print the named shapes")
    parser.add_argument("--types", default="hf,Q4_0", help="what to write, comma-separated")
    parser.add_argument("--layers", type=int, help="keep only so many layers")
    parser.add_argument("--experts", type=int, help="keep only so many routed experts")
    parser.add_argument("--next-token", action="store_true",
                        help="with a next-token module (V3's MTP); in the type hf alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name", help="of the files; default: the shape's")
    parser.add_argument("--shard-bytes", type=int, default=4 << 30)
    args = parser.parse_args()
    if args.list:
        print(*sorted(shapes.NAMED), sep="\n")
        raise SystemExit(0)
    if args.shape is None or args.folder is None:
        parser.error("a shape and a folder are needed")
    args.types = args.types.split(",")
    for kind in args.types:
        if kind not in KINDS:
            parser.error(f"type {kind!r} is none of {', '.join(KINDS)}")
    if args.next_token and args.types != ["hf"]:
        parser.error("--next-token goes with --types hf alone")
    return args


def main():
    args = parse_arguments()
    config = shapes.cut(shapes.read_shape(args.shape), args.layers, args.experts)
    if args.next_token or "num_nextn_predict_layers" in config:
        config["num_nextn_predict_layers"] = int(args.next_token)
    if args.next_token and config["model_type"] not in ("deepseek_v3", "deepseek_v32"):
        raise SystemExit("make_model: --next-token needs a shape of DeepSeek-V3 or V3.2")
    listed = tensors.list_tensors(config)
    name = args.name or pathlib.Path(args.shape).stem
    if args.shape in shapes.NAMED and args.name is None:
        name = args.shape
    count = sum(tensor.count() for tensor in listed)
    print(f"{name}: {len(listed)} tensors, {count / 1e6:.1f} M parameters", file=sys.stderr)
    made = (tokenizer.Tokenizer(config) if config["vocab_size"] >= tokenizer.SIZE_MIN else None)
    args.folder.mkdir(parents=True, exist_ok=True)
    for kind in args.types:
        start = time.monotonic()
        path = args.folder / (name if kind == "hf" else f"{name}.{kind}.gguf")
        if kind == "hf":
            files.write_hugging_face(path, config, listed, args.seed, args.shard_bytes, made)
        else:
            files.write_gguf(path, config, listed, args.seed, kind, made)
        print(path)
        print(f"{path}: {time.monotonic() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
