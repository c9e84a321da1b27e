"""Offline inference, with the lines that users know from vLLM's quick start.

    pip install .
    python examples/offline_inference.py [MODEL]     (default: smollm2, which run.sh fetches)
"""

import sys

from kun import LLM, SamplingParams

# Sample prompts.
prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
# Create a sampling params object.
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)


def main():
    # Create an LLM.
    llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    # Generate texts from the prompts. The output is a list of RequestOutput objects that contain
    # the prompt, generated text, and other information.
    outputs = llm.generate(prompts, sampling_params)
    # Print the outputs.
    print("\nGenerated Outputs:\n" + "-" * 60)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt:    {prompt!r}")
        print(f"Output:    {generated_text!r}")
        print("-" * 60)


if __name__ == "__main__":
    main()
