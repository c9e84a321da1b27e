#!/usr/bin/env python3
"""Counts the instructions of the arm64 linear kernels' inner loops, from their object files.

    bench/arm64/count_instructions.py [BUILD_FOLDER] [--predict]        (default: build-arm64)

Speed cannot be measured on a machine without the processor; instructions can be counted. For every
table, format and number of tokens the innermost loop that multiplies is found in the disassembly,
its instructions are sorted by the unit that runs them, and divided by the multiply-adds it does.
The last columns apply the machine model of a Kunpeng 920 core (see MODEL). --predict makes tokens a
second of them for a 64-core Kunpeng 920 (see SOCKET).
"""

import argparse
import pathlib
import re
import subprocess
import sys

# Multiply-adds of one vector instruction. fmla counts only where it is the product itself.
PRODUCTS = {"sdot": 16, "smmla": 32, "smull": 8, "smull2": 8, "smlal": 8, "smlal2": 8,
            "bfmmla": 16, "bfdot": 8, "fmla": 4}

# LLVM's machine model of the core (AArch64SchedTSV110.td, Apache-2.0 with LLVM exception): four
# instructions a cycle, two vector pipes, two for loads and stores. Integer vector instructions of
# 128 bits take both pipes; shifts and widening multiplies only the first. Dot products are not in
# it and inherit "either pipe", which is taken here.
MODEL = {"issue": 4, "loads": 2}
BOTH_PIPES = re.compile(r"^(and|orr|eor|bic|mov|movi|mvni|add|addp|sub|neg|zip[12]|uzp[12]|ext|"
                        r"sadalp|saddlp|xtn2?|dup|ins|sxtl2?|sshll2?)$")
FIRST_PIPE = re.compile(r"^(ushr|sshr|shl|sli|sri|smull2?|smlal2?)$")
EITHER_PIPE = re.compile(r"^(sdot|smmla|bfmmla|bfdot|f\w+|scvtf|ucvtf)$")
MEMORY = re.compile(r"^(ldr|ldur|ldp|ld1r?|ld2|str|stur|stp|st1|prfm|prfum|ldrsw|ldrb|ldrsb)$")

# One socket: cores, clock, and what of eight channels of DDR4-2933 (187.7 GB/s) a stream reaches.
SOCKET = {"cores": 64, "hertz": 2.6e9, "bandwidth": 0.75 * 187.7e9}
# Multiply-adds of the layers, and of the head, which runs once a sequence: model-spec's shapes.
MODELS = {"R1-Distill-Qwen-1.5B": (1310e6, 233.4e6), "R1-Distill-Qwen-7B": (6525e6, 545e6)}
# Bytes a weight takes in packed panels.
PACKED = {"Q4_0": 0.5625, "Q4_K": 0.640625, "Q8_0": 1.0625, "BF16": 2.0, "Q6_K": 0.8203125}
HEADS = {"Q4_0": "Q6_K", "Q4_K": "Q6_K", "Q8_0": "Q8_0", "BF16": "BF16"}

FORMATS = {0: "F32", 1: "BF16", 2: "Q4_0", 3: "Q4_1", 4: "Q4_K", 8: "Q6_K", 9: "Q8_0"}
NAME = re.compile(r"Grouped<\(kun::PanelFormat\)(\d+)>::Panel<(\d)>::run\(|"
                  r"::Float<kun::\(anonymous namespace\)::(F32|Bf16)Columns>::Panel<(\d)>::run\(|"
                  r"PairPanel<.*::Blocks<\(kun::PanelFormat\)(\d+)>, (\d)>::run\(|"
                  r"PairPanel<.*::Steps, (\d)>::run\(")


def functions(path):
    """Yields (name, [(address, opcode, operands)]) of an object file."""
    command = ["aarch64-linux-gnu-objdump", "-d", "-C", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for block in text.split("\n\n"):
        head = re.search(r"^[0-9a-f]+ <(.*)>:$", block, re.M)
        if head is None:
            continue
        lines = re.findall(r"^ +([0-9a-f]+):\t([\w.]+)(?:\t(.*))?$", block, re.M)
        yield head.group(1), [(int(at, 16), op, rest) for at, op, rest in lines]


def loops(code):
    """Bodies of the loops of a function: from a backward branch's target to the branch."""
    places = {at: i for i, (at, _, _) in enumerate(code)}
    for i, (at, op, rest) in enumerate(code):
        if op == "b" or op.startswith("b.") or op.startswith("cb") or op.startswith("tb"):
            target = re.search(r"(?:^|, )([0-9a-f]+) <", rest)
            start = places.get(int(target.group(1), 16)) if target else None
            if start is not None and int(target.group(1), 16) <= at:
                yield code[start:i + 1]


def is_vector(op, rest):
    return op in PRODUCTS or re.search(r"\bv\d+\.", rest) is not None


def products(body, integer):
    return sum(PRODUCTS.get(op, 0) for _, op, _ in body if not (integer and op == "fmla"))


def inner_loop(code):
    """The shortest loop that does most of the function's products at once."""
    integer = any(op in PRODUCTS and op != "fmla" for _, op, _ in code)
    found = [(products(body, integer), body) for body in loops(code)]
    found = [(count, body) for count, body in found if count > 0]
    if not found:
        return None
    # A loop around another has its products too; take the innermost of those with the most.
    most = max(count for count, _ in found)
    return min((body for count, body in found if count == most), key=len), most


def measure(body):
    both = first = either = memory = other = 0
    for _, op, rest in body:
        if MEMORY.match(op):
            memory += 1
        elif not is_vector(op, rest) and op not in ("fmov",):
            other += 1
        elif BOTH_PIPES.match(op):
            both += 1
        elif FIRST_PIPE.match(op):
            first += 1
        elif EITHER_PIPE.match(op):
            either += 1
        else:
            raise SystemExit(f"count_instructions: what unit runs {op} {rest}?")
    vector = both + first + either
    modelled = max(both + max(first, (first + either) / 2), memory / MODEL["loads"],
                   len(body) / MODEL["issue"])
    plain = max(vector / 2, memory / MODEL["loads"], len(body) / MODEL["issue"])
    dots = sum(op == "sdot" for _, op, _ in body)
    one_dot_pipe = max(both + max(first + dots, (first + either) / 2), modelled)
    return {"vector": vector, "memory": memory, "all": len(body), "plain": plain,
            "modelled": modelled, "one": one_dot_pipe}


def identify(name, table):
    match = NAME.search(name)
    if match is None:
        return None
    form, tokens, column, float_tokens, pair_form, pair_tokens, bf16_tokens = match.groups()
    if form is not None:
        return int(form), int(tokens)
    if pair_form is not None:
        return int(pair_form), int(pair_tokens)
    if column is not None:
        return (0 if column == "F32" else 1), int(float_tokens)
    return (1, int(bf16_tokens)) if table == "neon_bf16" else None


def counted_tile(tokens):
    """The counted tile nearest below the even tiles of at most 6 that the tokens are cut into."""
    tile = -(-tokens // -(-tokens // 6))
    return max(t for t in (1, 2, 4, 6) if t <= tile)


def step_seconds(speeds, model, form, tokens, sequences):
    """Compute and memory seconds of one step: tokens in the layers, sequences in the head."""
    layers, head = MODELS[model]
    rate = SOCKET["cores"] * SOCKET["hertz"]
    compute = (layers * tokens / (rate * speeds[form, counted_tile(tokens)])
               + head * sequences / (rate * speeds[HEADS[form], counted_tile(sequences)]))
    data = layers * PACKED[form] + head * PACKED[HEADS[form]]
    return compute, data / SOCKET["bandwidth"]


def predict(rows):
    print("\n| model | weights | load | compute, ms | memory, ms | tokens/s at most |")
    print("|---|---|---|---|---|---|")
    for model in MODELS:
        for form, table in (("Q4_0", "neon_dot"), ("Q8_0", "neon_dot"), ("BF16", "neon")):
            # BF16 tiles are the ARMv8.0 table's, with F32 arithmetic.
            speeds = {(FORMATS[f], t): macs / m["modelled"] for name, f, t, macs, m in rows
                      if name in (table, "neon_dot")}
            for load, tokens, sequences in (("1 user", 1, 1), ("8 users", 8, 8),
                                            ("16 users", 16, 16), ("prompts of 512", 512, 1)):
                compute, memory = step_seconds(speeds, model, form, tokens, sequences)
                print(f"| {model} | {form} | {load} | {1e3 * compute:.1f} | {1e3 * memory:.1f} |"
                      f" {tokens / max(compute, memory):.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="build-arm64", type=pathlib.Path)
    parser.add_argument("--tokens", default="1,2,4,6", help="token counts to print")
    parser.add_argument("--predict", action="store_true")
    args = parser.parse_args()
    wanted = [int(t) for t in args.tokens.split(",")]
    rows = []
    for table in ("neon", "neon_dot", "neon_i8mm", "neon_bf16"):
        path = args.build / f"CMakeFiles/cpu_{table}.dir/src/backends/cpu/{table}/linear.cc.o"
        if not path.exists():
            raise SystemExit(f"count_instructions: {path} is missing; run tests/arm64/run.sh first")
        for name, code in functions(path):
            key = identify(name, table)
            if key is None or key[0] not in FORMATS or key[1] not in wanted:
                continue
            loop = inner_loop(code)
            if loop is None:
                raise SystemExit(f"count_instructions: {table}: no loop multiplies in {name}")
            rows.append((table, *key, loop[1], measure(loop[0])))
    print("| table | weights | tokens | vector | memory | all | share | plain | LLVM"
          " | one dot pipe |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for table, form, tokens, macs, m in sorted(rows, key=lambda r: (r[0:3])):
        peak = {"neon": 8, "neon_dot": 16, "neon_i8mm": 32, "neon_bf16": 16}[table]
        if form <= 1 and table in ("neon", "neon_dot"):
            peak = 4
        unit = 1000.0 / macs
        print(f"| {table} | {FORMATS[form]} | {tokens} | {m['vector'] * unit:.1f} |"
              f" {m['memory'] * unit:.1f} | {m['all'] * unit:.1f} |"
              f" {macs / peak / m['vector']:.2f} | {macs / m['plain']:.1f} |"
              f" {macs / m['modelled']:.1f} | {macs / m['one']:.1f} |")
    if args.predict:
        predict(rows)


if __name__ == "__main__":
    sys.exit(main())
