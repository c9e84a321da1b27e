#!/usr/bin/env python3
"""Floods against `kun serve`, over real sockets, with what a client can see as the only judge.

    tests/overload/overload.py [--timed]

One server has a memory budget, and clients that want more than it has of everything at once; two
have several tenants, whose cached prompts are apart or shared. With
--timed another takes 15 ms for a step, whatever is in it, so that times can be foretold: shares of
tenants, Retry-After and deadlines by the clock, which a busy machine spoils. Simulations hold the
same promises without a clock (tests/simulation).
"""

import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STEP = 0.015
BUDGET = 288 << 20


class Server:
    def __init__(self, script, *flags):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [os.environ["KUN"], "serve", "script:" + os.path.join(HERE, script), *flags]
        command += ["--host", "127.0.0.1", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.port = 0
        for _ in range(200):
            found = re.search(r"serving .* on 127\.0\.0\.1:(\d+)", self.text())
            if found:
                self.port = int(found[1])
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError("the server did not start:\n" + self.text())

    def text(self):
        with open(self.log.name) as file:
            return file.read()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def ask(self, path, body, key="", timeout=30):
        """The status, the headers in lower case, and the body read as JSON where it is some."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            headers = {"Content-Type": "application/json"}
            if key:
                headers["Authorization"] = "Bearer " + key
            data = body if isinstance(body, (bytes, str)) else json.dumps(body)
            method = "GET" if body is None else "POST"
            connection.request(method, path, data if body else None, headers)
            response = connection.getresponse()
            text = response.read().decode()
            names = {name.lower(): value for name, value in response.getheaders()}
            try:
                return response.status, names, json.loads(text)
            except ValueError:
                return response.status, names, text
        finally:
            connection.close()

    def metric(self, name, **labels):
        _, _, page = self.ask("/metrics", None)
        for line in page.splitlines():
            if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def memory(self, field="VmRSS"):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(field + r":\s+(\d+) kB", file.read())[1]) << 10


class Flood:
    """Clients of one tenant that always want more."""

    def __init__(self, server, key, count, tokens):
        self.server, self.key, self.tokens = server, key, tokens
        self.over = False
        self.statuses = []
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.over:
            body = {"prompt": "x", "max_tokens": self.tokens, "ignore_eos": True}
            try:
                status, headers, _ = self.server.ask("/v1/completions", body, self.key)
            except OSError:
                return
            self.statuses.append(status)
            if status != 200:
                time.sleep(float(headers.get("retry-after-ms", 100)) / 1e3)

    def end(self):
        self.over = True
        for thread in self.threads:
            thread.join()


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def request(server, key, tokens=10, **more):
    body = {"prompt": "y", "max_tokens": tokens, "ignore_eos": True, **more}
    begin = time.monotonic()
    status, headers, answer = server.ask("/v1/completions", body, key)
    return status, headers, answer, time.monotonic() - begin


def test_shares_and_single_requests(server):
    floods = [Flood(server, "alice-key", 30, 40), Flood(server, "bob-key", 30, 40)]
    time.sleep(1.0)
    name = "kun:tenant_generation_tokens_total"
    before = [server.metric(name, tenant=tenant) for tenant in ("alice", "bob")]
    time.sleep(5.0)
    after = [server.metric(name, tenant=tenant) for tenant in ("alice", "bob")]
    # Nothing is free, and the line is full: somebody else's request takes its own steps and a few.
    for _ in range(3):
        status, _, _, took = request(server, "carol-key", 10)
        expect(status == 200, f"a single request got {status}")
        expect(took < 10 * STEP + 0.35, f"a single request took {took:.2f} s beside a flood")
        time.sleep(0.2)
    for flood in floods:
        flood.over = True
    for flood in floods:
        flood.end()
    ratio = (after[1] - before[1]) / max(after[0] - before[0], 1)
    expect(2.0 < ratio < 4.5, f"weights are 1:3, tokens were 1:{ratio:.2f}")


def test_retry_after_comes_true(server):
    for tokens in (80, 120):
        threads = [
            threading.Thread(target=request, args=(server, "alice-key", tokens), daemon=True)
            for _ in range(20)
        ]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
            time.sleep(0.002)
        time.sleep(0.1)
        # Four run, eight wait, the rest was refused; a place is free when the four have ended.
        left = tokens * STEP - (time.monotonic() - begin)
        status, headers, answer, _ = request(server, "alice-key", 1)
        expect(status == 429, f"a full line gives {status}")
        expect(answer["error"]["code"] == "queue_full", answer)
        told = int(headers["retry-after-ms"]) / 1e3
        expect(int(headers["retry-after"]) >= told, "Retry-After is shorter than retry-after-ms")
        expect(left / 2 < told < left * 2, f"{left:.3f} s are left, told {told:.3f} s")
        time.sleep(2 * told)
        status, _, _, _ = request(server, "alice-key", 1)
        expect(status == 200, f"after twice the time told it is {status}")
        for thread in threads:
            thread.join()


def test_deadlines(server):
    status, _, answer, took = request(server, "alice-key", 200, timeout_ms=400, ignore_eos=False)
    expect(status == 200, f"a request whose time is over got {status}")
    expect(answer["choices"][0]["finish_reason"] == "abort", answer)
    expect(10 < answer["usage"]["completion_tokens"] < 40, answer["usage"])
    expect(took < 0.6, f"timeout_ms of 400 took {took:.2f} s")
    status, headers, answer, _ = request(server, "alice-key", 20, ttft_slo_ms=2)
    expect(status == 400 and answer["error"]["code"] == "deadline_impossible", answer)
    threads = [
        threading.Thread(target=request, args=(server, "alice-key", 60), daemon=True)
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    status, headers, answer, took = request(server, "alice-key", 20, ttft_slo_ms=200)
    expect(status == 503 and answer["error"]["code"] == "deadline_unreachable", (status, answer))
    expect(took < 0.15, f"an early refusal took {took:.2f} s")
    time.sleep(2 * int(headers["retry-after-ms"]) / 1e3)
    begin = time.monotonic()
    status, _, answer, _ = request(server, "alice-key", 1, ttft_slo_ms=200)
    expect(status == 200, (status, answer))
    expect(time.monotonic() - begin < 0.3, "it was answered late")
    for thread in threads:
        thread.join()


def cached_tokens(server, key, **more):
    """How much of a prompt that fills several blocks the server had in its cache."""
    body = {"prompt": "all work and no play " * 40, "max_tokens": 1, **more}
    status, _, answer = server.ask("/v1/completions", body, key)
    expect(status == 200, f"{key} got {status}: {answer}")
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_tenants_find_only_their_own_prompts(server):
    expect(cached_tokens(server, "alice-key") == 0, "the first prompt was in the cache")
    expect(cached_tokens(server, "alice-key") > 500, "a tenant does not find its own prompt")
    expect(cached_tokens(server, "alice-too") > 500, "another key of the tenant does not find it")
    for key in ("bob-key", "carol-key"):
        expect(cached_tokens(server, key) == 0, f"{key} finds the prompt of another tenant")
    for salt in ("alice", "5:alice"):
        found = cached_tokens(server, "bob-key", cache_salt=salt)
        expect(found == 0, f"bob finds {found} tokens of others with the salt {salt}")
    found = cached_tokens(server, "alice-key", cache_salt="s")
    expect(found == 0, "a salt does not part requests of one tenant")
    body = {"input": "all work and no play " * 40}
    _, _, answer = server.ask("/v1/embeddings", body, "carol-key")
    found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    expect(found > 500, "an embedding does not find the tenant's own prompt")


def test_tenants_share_what_they_have_in_common(server):
    expect(cached_tokens(server, "alice-key") == 0, "the first prompt was in the cache")
    expect(cached_tokens(server, "bob-key") > 500, "with --no-isolate-tenants nothing is shared")


def attack_uploads(server, over, seen):
    """Large bodies that never end."""
    sockets = []
    while not over.is_set():
        try:
            connection = socket.create_connection(("127.0.0.1", server.port), 5)
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            for _ in range(60):
                connection.sendall(b"20000\r\n" + b" " * 0x20000 + b"\r\n")
            sockets.append(connection)
        except OSError:
            seen["upload refused"] = seen.get("upload refused", 0) + 1
            time.sleep(0.05)
        if len(sockets) > 12:
            sockets.pop(0).close()


def attack(server, over, seen, make):
    while not over.is_set():
        path, body = make()
        try:
            status, _, _ = server.ask(path, body, timeout=20)
        except (OSError, http.client.HTTPException):
            status = 0
        name = f"{path} {status}"
        seen[name] = seen.get(name, 0) + 1


def large_request():
    prompt = "".join(random.choice("abcdefgh ") for _ in range(40_000))
    body = {"prompt": prompt, "max_tokens": 200, "n": 4, "logprobs": 20, "ignore_eos": True}
    return "/v1/completions", body


def scored_prompt():
    prompt = "".join(random.choice("abcdefgh ") for _ in range(12_000))
    body = {"prompt": prompt, "max_tokens": 5, "n": 1, "logprobs": 20, "echo": True}
    return "/v1/completions", body


def json_bomb():
    return "/v1/completions", '{"prompt":[' + "0," * 3_000_000 + "0]}"


def grammar():
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = ["".join(random.choice(letters) for _ in range(12)) for _ in range(150)]
    properties = {n: {"type": "string", "pattern": f"^{n}[a-z]{{0,40}}$"} for n in names}
    schema = {"type": "object", "properties": properties}
    return "/v1/completions", {
        "prompt": "json", "max_tokens": 60, "structured_outputs": {"json": schema},
    }


def stored():
    text = "".join(random.choice("abcdefgh ") for _ in range(60_000))
    return "/v1/responses", {"input": text, "max_output_tokens": 50, "store": True}


def test_memory_budget(server):
    over = threading.Event()
    seen = {}
    makers = [large_request] * 6 + [scored_prompt] * 4 + [json_bomb] * 3
    makers += [grammar] * 4 + [stored] * 4
    threads = [threading.Thread(target=attack, args=(server, over, seen, make)) for make in makers]
    for _ in range(4):
        threads.append(threading.Thread(target=attack_uploads, args=(server, over, seen)))
    start = server.memory()
    for thread in threads:
        thread.daemon = True
        thread.start()
    end = time.monotonic() + 6.0
    most = 0
    while time.monotonic() < end:
        expect(server.process.poll() is None, "the server died:\n" + server.text()[-2000:])
        most = max(most, server.memory("VmHWM"))
        time.sleep(0.05)
    over.set()
    for thread in threads:
        thread.join(25)
    most = max(most, server.memory("VmHWM"))
    print(f"  {start >> 20} MiB before, {most >> 20} MiB at most, the budget is {BUDGET >> 20} MiB")
    print("  " + ", ".join(f"{name}: {count}" for name, count in sorted(seen.items())))
    expect(most <= BUDGET, f"{most >> 20} MiB were resident, the budget is {BUDGET >> 20} MiB")
    expect(most > start + (24 << 20), "nobody took any memory: the test does not test")
    words = ("503", "413", "refused")
    refused = sum(count for name, count in seen.items() if name.endswith(words))
    served = sum(count for name, count in seen.items() if name.endswith("200"))
    expect(refused > 0, f"nobody was refused: {seen}")
    expect(served > 0, f"nobody was served: {seen}")
    time.sleep(0.5)
    status, _, answer = server.ask("/v1/completions", {"prompt": "x", "max_tokens": 4})
    expect(status == 200, f"after the flood it is {status}: {answer}")


def main():
    passed = failed = 0

    def run(server, *tests):
        nonlocal passed, failed
        for test in tests:
            begin = time.monotonic()
            try:
                test(server)
                passed += 1
                word = "ok"
            except Exception as error:  # noqa: BLE001 - a failing test must not hide the others
                failed += 1
                word = f"FAILED: {error!r}"
            print(f"{test.__name__}: {word} ({time.monotonic() - begin:.1f} s)", flush=True)
        server.stop()

    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("alice-key alice 1\nalice-too alice\nbob-key bob 3\ncarol-key carol\n")
        keys.flush()
        with_keys = ("--api-key-file", keys.name, "--kv-cache-memory-bytes", "16MiB")
        if "--timed" in sys.argv:
            server = Server("steady.script", *with_keys, "--max-num-seqs", "4",
                            "--max-waiting", "8")
            run(server, test_shares_and_single_requests, test_retry_after_comes_true,
                test_deadlines)
        run(Server("quick.script", *with_keys), test_tenants_find_only_their_own_prompts)
        run(Server("quick.script", *with_keys, "--no-isolate-tenants"),
            test_tenants_share_what_they_have_in_common)
    server = Server("quick.script", "--memory-budget", str(BUDGET),
                    "--kv-cache-memory-bytes", "16MiB")
    run(server, test_memory_budget)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
