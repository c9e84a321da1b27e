#!/usr/bin/env python3
"""How long a model's start takes: in the file's own format, converted for the first time, and from
the packed weights that the first start left.

    bench/starts.py MODEL [--kun build/kun] [--formats int4,int8] [--repeat 5]

A start is the time from exec to the first token of the first answer. The second start comes right
after the first has ended; a cold one finds neither the model nor the packed weights in the page
cache. It fails where a second start takes more than two seconds or more than the own format.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_S_MAX = 120
SECOND_START_S_MAX = 2.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processor_seconds(pid):
    """Of the process and of the kernel on its behalf."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


def own_memory(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status).group(1)) * 1024


@contextlib.contextmanager
def served(kun, model, *flags):
    """A server that has answered with its first token: its process, and the seconds until then."""
    port = free_port()
    body = json.dumps({"model": "m", "prompt": [1, 2, 3], "max_tokens": 1}).encode()
    began = time.monotonic()
    server = subprocess.Popen([kun, "serve", model, "--port", str(port), "--served-model-name", "m",
                               *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                ask = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body,
                                             {"Content-Type": "application/json"})
                urllib.request.urlopen(ask, timeout=60).read()
                break
            except (OSError, urllib.error.URLError):
                if server.poll() is not None or time.monotonic() - began > START_S_MAX:
                    raise
                time.sleep(0.01)
        yield server, time.monotonic() - began
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def start(kun, model, flags):
    """Seconds to the first token, of the processors in the program and in the kernel; bytes."""
    with served(kun, model, "--kv-cache-memory-bytes", "64MiB", *flags) as (server, seconds):
        return (seconds, *processor_seconds(server.pid), own_memory(server.pid))


def files_under(*places):
    for place in map(pathlib.Path, places):
        yield from [place] if place.is_file() else filter(pathlib.Path.is_file, place.iterdir())


def warm(*places):
    for file in files_under(*places):
        with file.open("rb") as stream:
            while stream.read(1 << 24):
                pass


def evict(*places):
    """From the page cache. What is not on the disk yet stays, so that goes there first."""
    for file in files_under(*places):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def show(name, starts):
    seconds, program, kernel, memory = (statistics.median(column) for column in zip(*starts))
    print(f"| {name:32} | {seconds:6.2f} s | {program:6.2f} s | {kernel:6.2f} s "
          f"| {memory / (1 << 20):6.0f} MiB |", flush=True)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kun", default=str(ROOT / "build" / "kun"))
    parser.add_argument("--formats", default="int4,int8")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()

    def starts(count, *flags):
        return [start(arguments.kun, arguments.model, flags) for _ in range(count)]

    def cold_starts(cache, *flags):
        out = []
        for _ in range(arguments.repeat):
            evict(arguments.model, *cache)
            out += starts(1, *flags)
        return out

    print(f"| {'start':32} | {'to token':>8} | {'program':>8} | {'kernel':>8} | {'memory':>10} |")
    print(f"|{'-' * 34}|{'-' * 9}:|{'-' * 9}:|{'-' * 9}:|{'-' * 11}:|")
    own_flags = ("--weights-cache", "off")
    show("own format, cold", cold_starts((), *own_flags))
    warm(arguments.model)
    own = show("own format", starts(arguments.repeat, *own_flags))
    failed = False
    for name in arguments.formats.split(","):
        with tempfile.TemporaryDirectory(prefix="kun_starts_", dir="/var/tmp") as cache:
            flags = ("--weight-format", name, "--weights-cache", cache)
            warm(arguments.model)
            show(f"{name}, first", starts(1, *flags))
            second = show(f"{name}, right after the first", starts(1, *flags))
            later = show(f"{name}, later", starts(arguments.repeat, *flags))
            show(f"{name}, cold", cold_starts((cache,), *flags))
            failed = failed or max(second, later) > SECOND_START_S_MAX or later > own
    if failed:
        sys.exit("a second start took longer than two seconds or than the own format")


if __name__ == "__main__":
    main()
