"""Two conversations that stream at once, from one engine.

    python examples/async_streaming.py [MODEL]
"""

import asyncio
import sys

from kun import AsyncLLM, RequestOutputKind, SamplingParams


async def answer(llm, name, question):
    params = SamplingParams(temperature=0.7, max_tokens=48, output_kind=RequestOutputKind.DELTA)
    async for output in llm.chat([{"role": "user", "content": question}], params):
        print(f"[{name}] {output.outputs[0].text!r}", flush=True)


async def main():
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    async with AsyncLLM(model=model) as llm:
        await asyncio.gather(
            answer(llm, "sea", "Why is the sea salty?"),
            answer(llm, "sky", "Why is the sky blue?"),
        )


if __name__ == "__main__":
    asyncio.run(main())
