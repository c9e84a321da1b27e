#!/usr/bin/env python3
"""What speculation gains where texts repeat, and what wrong drafts cost.

Two servers run side by side, one with --speculative-config and one without, and answer the same
requests in turn, so that what disturbs the machine disturbs both. Greedy outputs must be equal
token by token. Needs nothing but Python and a built kun.

  bench/speculation.py --kun build/kun --model ~/.cache/kun/models/SmolLM2-135M-Instruct.Q4_1.gguf
  bench/speculation.py --model models/kun-tiny-v3 --text models/kun-tiny-v3/held_out.txt

With --text the model continues passages of it, and drafts come from its own next-token module.
"""

import argparse
import concurrent.futures
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4,
         "prompt_lookup_min": 2}
RANDOM = {"method": "random", "num_speculative_tokens": 4}
MTP = {"method": "mtp", "num_speculative_tokens": 1}
MTP_FIXED = {**MTP, "adaptive": False}  # shows how often drafts are right, whether they pay or not

CODE = '''class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
        return self.balance
'''

LETTER = ("On Monday the ship Aurora left Lisbon with forty tons of cork for Bristol. On Tuesday "
          "the ship Meridian left Porto with twelve casks of wine for London. On Friday the ship "
          "Halcyon left Cadiz with nine crates of oranges for Dublin. The harbour master noted "
          "that the weather was fair and that no cargo had been damaged.")

# Name, question, tokens of the answer. The edit is one that a model of 135 million parameters does
# not answer with a class of its own.
REPEATING = [
    ("code edit", "Repeat this Python class exactly as it is, and change only the class name "
     "Account to Purse. Answer with the code only.\n\n" + CODE, 160),
    ("extraction", "Copy every sentence of this text that names a ship, word for word.\n\n"
     + LETTER, 120),
]
PASSAGES, PASSAGE_BYTES, PASSAGE_TOKENS = 8, 120, 120
OTHER = [("prose", "Write a short story about a lighthouse keeper and his dog.", 220)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """kun serve on a port of its own, while the block lasts."""

    def __init__(self, arguments, config):
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [arguments.kun, "serve", arguments.model, "--port", self.url.rsplit(":")[-1],
                   "--kv-cache-memory-bytes", "256MiB", "--no-enable-prefix-caching"]
        if arguments.threads:
            command += ["--threads", str(arguments.threads)]
        if config:
            command += ["--speculative-config", json.dumps(config)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.model = ""

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit("kun serve ended before it was ready")
            try:
                with urllib.request.urlopen(self.url + "/v1/models", timeout=5) as answer:
                    models = json.load(answer)["data"]
                    if models:
                        self.model = models[0]["id"]
                        return self
            except (OSError, KeyError, ValueError):
                pass
            time.sleep(0.1)
        sys.exit("kun serve did not become ready")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def complete(self, passages, tokens):
        """Texts that continue the passages one after the other, tokens, and seconds in all."""
        texts, count, start = [], 0, time.perf_counter()
        for passage in passages:
            body = {"model": self.model, "prompt": passage, "max_tokens": tokens,
                    "temperature": 0, "ignore_eos": True}
            request = urllib.request.Request(self.url + "/v1/completions",
                                             json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=300) as answer:
                result = json.load(answer)
            texts.append(result["choices"][0]["text"])
            count += result["usage"]["completion_tokens"]
        return texts, count, time.perf_counter() - start

    def ask(self, question, tokens):
        """Text of a greedy answer, tokens, and the seconds from its first token to its last."""
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens,
                "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        request = urllib.request.Request(self.url + "/v1/chat/completions",
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        text, count, first, last = "", 0, 0.0, 0.0
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("usage"):
                    count = event["usage"]["completion_tokens"]
                for choice in event["choices"]:
                    piece = choice["delta"].get("content")
                    if piece:
                        last = time.perf_counter()
                        first = first or last
                        text += piece
        return text, count, last - first

    def drafts(self):
        """Draft tokens and accepted ones so far."""
        values = {}
        with urllib.request.urlopen(self.url + "/metrics") as page:
            for line in page.read().decode().splitlines():
                if line.startswith("vllm:spec_decode_num_"):
                    name, value = line.rsplit(" ", 1)
                    values[name.split("{")[0]] = float(value)
        return (values.get("vllm:spec_decode_num_draft_tokens_total", 0),
                values.get("vllm:spec_decode_num_accepted_tokens_total", 0))


def rate(server, question, tokens, users):
    """Tokens per second of all users together, and their texts."""
    if isinstance(question, list):
        parts = [question[i::users] for i in range(users)]
        start = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(users) as pool:
            answers = list(pool.map(lambda part: server.complete(part, tokens), parts))
        return sum(a[1] for a in answers) / (time.perf_counter() - start), [a[0] for a in answers]
    if users == 1:
        text, count, seconds = server.ask(question, tokens)
        return (count - 1) / seconds, [text]
    questions = [f"{question} ({i})" for i in range(users)]
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(users) as pool:
        answers = list(pool.map(lambda q: server.ask(q, tokens), questions))
    seconds = time.perf_counter() - start
    return sum(a[1] for a in answers) / seconds, [a[0] for a in answers]


def compare(arguments, plain, drafting, task, users):
    """The ratio of the two servers' rates, printed with what it is made of."""
    name, question, tokens = task
    before = drafting.drafts()
    rates = ([], [])
    texts = [None, None]
    for run in range(arguments.repeat + 1):
        order = (0, 1) if run % 2 == 0 else (1, 0)
        for which in order:
            result, texts[which] = rate((plain, drafting)[which], question, tokens, users)
            if run > 0:  # the first warms up
                rates[which].append(result)
    if texts[0] != texts[1]:
        sys.exit(f"{name}: the outputs differ:\n{texts[0]}\n---\n{texts[1]}")
    ratio = statistics.median(b / a for a, b in zip(*rates))
    drafted, accepted = (b - a for a, b in zip(before, drafting.drafts()))
    share = accepted / drafted if drafted else 0.0
    print(f"{name:12s} {users:5d} {statistics.median(rates[0]):10.1f}"
          f"{statistics.median(rates[1]):10.1f}{ratio:8.3f}   {share:6.1%} of {drafted:.0f}",
          flush=True)
    return ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kun", default="build/kun")
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--users", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--only", help="one table, by its title")
    parser.add_argument("--text", help="a text whose passages the model continues")
    arguments = parser.parse_args()
    # Title, configuration, tasks, and the least ratio where texts repeat for one user. Fixed drafts
    # may lose.
    tables = [("ngram", NGRAM, REPEATING + OTHER, 1.5), ("random", RANDOM, OTHER, 0.97)]
    if arguments.text:
        text = pathlib.Path(arguments.text).read_bytes()
        step = len(text) // PASSAGES
        passages = [text[i * step:i * step + PASSAGE_BYTES].decode(errors="ignore")
                    for i in range(PASSAGES)]
        task = [("passages", passages, PASSAGE_TOKENS)]
        tables = [("mtp", MTP, task, 0.97), ("mtp, three", {**MTP, "num_speculative_tokens": 3},
                                             task, 0.97),
                  ("random", RANDOM, task, 0.97), ("mtp, always", MTP_FIXED, task, 0.0)]
    failed = False
    for title, config, tasks, least in tables:
        if arguments.only and arguments.only != title:
            continue
        print(f"\n{title}: {json.dumps(config)}\n{'task':12s} users  tokens/s: without   with   "
              "ratio   right drafts")
        with Server(arguments, None) as plain, Server(arguments, config) as drafting:
            for task in tasks:
                for users in arguments.users:
                    ratio = compare(arguments, plain, drafting, task, users)
                    repeating = task in REPEATING and users == 1
                    failed = failed or ratio < (least if repeating else min(least, 0.97))
    if failed:
        sys.exit("below what is wanted: 1.5 where texts repeat for one user, 0.97 elsewhere")


if __name__ == "__main__":
    main()
