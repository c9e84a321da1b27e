#!/usr/bin/env python3
"""`kun` with arguments that cannot be used: one sentence on standard error, nothing on standard
output, exit status 2; and with signals while it loads and serves.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/tiny-models/llama-mha")
SERVE = ["serve", "script:hello.script", "--host", "127.0.0.1", "--port", "0"]
FOLDER = "Is a directory"

# The words, and what the sentence must say. The current folder holds what main() puts there.
UNUSABLE = {
    "unknown command": (["sevre", "model"], "'sevre' is no command or flag here"),
    "unknown bench": (["bench", "latncy"], "'latncy' is no command or flag here"),
    "misspelt flag": (["complete", TINY, "--promt", "hi"], "'--promt' is no command or flag here"),
    "flag of another server": ([*SERVE, "--swap-space", "4"], "'--swap-space' is no"),
    "no model": (["serve"], "--model is required"),
    "empty model": (["inspect", ""], "the name of the model is empty"),
    "inspect, kernels": (["inspect", TINY, "--kernels", "x"], "--kernels: x not in"),
    "inspect, cache": (["inspect", TINY, "--kv-cache-dtype", "x"], "and not 'x'"),
    "bench kernels, kernels": (["bench", "kernels", "--kernels", "x"], "--kernels: x not in"),
    "bench kernels, svg": (["bench", "kernels", "--svg", "missing/x.svg"], "cannot write"),
    "perplexity, folder": (["perplexity", "kun-tiny-v3", "--file", "folder"], FOLDER),
    "tokenize, nothing": (["tokenize", "kun-tiny-v3"], "--prompt,--messages,--decode"),
    "tokenize, two": (["tokenize", "kun-tiny-v3", "--prompt", "a", "--decode", "1"], "Exactly 1"),
    "tokenize, no such id": (["tokenize", "kun-tiny-v3", "--decode", "1,99999999"],
                             "token id 99999999 is outside the vocabulary"),
    "tokenize, negative id": (["tokenize", "kun-tiny-v3", "--decode=-1"], "token id -1 is outside"),
    "tokenize, render": (["tokenize", "kun-tiny-v3", "--prompt", "a", "--render-only"],
                         "--render-only requires --messages"),
    "config, folder": ([*SERVE, "--config", "folder"], FOLDER),
    "config, missing": ([*SERVE, "--config", "missing"], "missing cannot be read"),
    "config, no mapping": ([*SERVE, "--config", "hello.script"], "no mapping of flags"),
    "empty key": ([*SERVE, "--api-key", ""], "--api-key: it is empty"),
    "empty name": ([*SERVE, "--served-model-name", ""], "--served-model-name: it is empty"),
    "key without certificate": ([*SERVE, "--ssl-keyfile", "hello.script"],
                                "a TLS key is of no use without its certificate"),
    "keys, folder": ([*SERVE, "--api-key-file", "folder"], "has no keys"),
}


def test_unusable(arguments, words):
    done = subprocess.run([os.environ["KUN"], *arguments], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 2, f"exit status {done.returncode}: {done.stderr}"
    assert done.stdout == "", done.stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith("kun: ")]
    assert len(lines) == 1 and lines[0].startswith("kun: invalid_argument: "), done.stderr
    assert words in lines[0], lines[0]


def start(wanted, *arguments):
    """A server, once its log says what is wanted."""
    server = subprocess.Popen([os.environ["KUN"], *SERVE, *arguments], text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for line in server.stderr:
        if re.search(wanted, line):
            return server
    raise AssertionError("the server ended")


def test_signal(which, wanted, *arguments):
    server = start(wanted, *arguments)
    try:
        server.send_signal(which)
        assert server.wait(30) == 0, server.returncode
    finally:
        server.kill()
        server.communicate()


def test_warns_of_a_cache_beyond_memory():
    start(r"a KV cache of \d+ MiB is more than the \d+ MiB that are free",
          "--kv-cache-memory-bytes", "1000TiB").kill()


def tests():
    for name, (arguments, words) in UNUSABLE.items():
        yield name, lambda arguments=arguments, words=words: test_unusable(arguments, words)
    for which in (signal.SIGINT, signal.SIGTERM):
        # Loading opens the trace last: nobody reads this one, so that it never ends.
        yield f"{which.name} while loading", lambda which=which: test_signal(
            which, "info device: ", "--trace", "nobody-reads")
        yield f"{which.name} while serving", lambda which=which: test_signal(
            which, "info serving ")
    yield "vLLM's flags without effect", lambda: test_signal(
        signal.SIGTERM, "info serving ", "--trust-remote-code", "--enforce-eager",
        "--enable-chunked-prefill", "--enable-auto-tool-choice")


def main():
    passed = failed = 0
    os.environ["KUN"] = os.path.abspath(os.environ["KUN"])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["KUN_HOME"] = folder
        os.mkdir("folder")
        os.mkfifo("nobody-reads")
        with open("hello.script", "w") as file:
            file.write('prompt *\n  emit "Hello"\n')
        subprocess.run([os.environ["KUN"], "pull", "kun-tiny-v3"], check=True, capture_output=True)
        for name, test in tests():
            try:
                test()
                passed += 1
            except Exception as error:  # noqa: BLE001 - a failing test must not hide the others
                failed += 1
                print(f"{name}: FAILED: {error!r}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
