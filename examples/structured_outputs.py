"""Answers of a given form, with the lines that users know from vLLM's documentation.

    pip install .
    python examples/structured_outputs.py [MODEL]     (default: smollm2, which run.sh fetches)
"""

import json
import sys

from kun import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "brand": {"type": "string", "maxLength": 20},
        "kind": {"enum": ["sedan", "SUV", "truck", "coupe"]},
    },
    "required": ["brand", "kind"],
    "additionalProperties": False,
}


def main():
    llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    demands = [
        ("Is vLLM great? ", StructuredOutputsParams(choice=["Positive", "Negative"])),
        ("Write an e-mail address: ", StructuredOutputsParams(regex=r"\w{1,12}@\w{1,12}\.com")),
        ("Describe a car as JSON: ", StructuredOutputsParams(json=SCHEMA)),
    ]
    prompts = [prompt for prompt, _ in demands]
    params = [
        SamplingParams(temperature=0, max_tokens=80, structured_outputs=demand)
        for _, demand in demands
    ]
    outputs = llm.generate(prompts, params)
    for output in outputs:
        print(f"Prompt:    {output.prompt!r}")
        print(f"Output:    {output.outputs[0].text!r}")
    json.loads(outputs[2].outputs[0].text)


if __name__ == "__main__":
    main()
