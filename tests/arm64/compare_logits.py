#!/usr/bin/env python3
"""Compares the JSON of `kun logits` with a tiny model's expected.json: same tokens, the same shape,
every logit within a tolerance, 1e-4 absolute unless said, which is what float32 arithmetic owes a
float64 reference here."""

import json
import math
import sys

TOLERANCE = 1e-4


def main(actual_path, expected_path, tolerance=TOLERANCE):
    with open(actual_path, encoding="utf-8") as file:
        actual = json.load(file)
    with open(expected_path, encoding="utf-8") as file:
        expected = json.load(file)
    if actual["tokens"] != expected["tokens"]:
        return f"tokens are {actual['tokens']}, expected {expected['tokens']}"
    shape = [len(row) for row in actual["logits"]]
    if shape != [len(row) for row in expected["logits"]]:
        return f"rows of {shape} logits"
    worst = max(abs(a - e) if math.isfinite(a) else math.inf
                for row, wanted in zip(actual["logits"], expected["logits"])
                for a, e in zip(row, wanted))
    if not worst <= float(tolerance):
        return f"a logit is off by {worst}"
    print(f"{len(shape)} rows, off by at most {worst:.2e}")
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
