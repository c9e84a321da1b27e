"""`kun run-batch`: OpenAI batch files, good and bad."""

import json
import os
import subprocess
import unittest

from scripts import FAST, GREETING, folder, script_model

KUN = os.environ["KUN"]
MODEL = os.environ["KUN_MODEL"]


def line(custom_id, body, url="/v1/chat/completions", **other):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **other})


def chat(text, **fields):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def run(lines, model=None, *flags, status=0):
    """The entries of the output, and what was said on standard error."""
    place = folder()
    (place / "in.jsonl").write_bytes(
        b"".join((l if isinstance(l, bytes) else l.encode()) + b"\n" for l in lines))
    command = [KUN, "run-batch", "-i", str(place / "in.jsonl"), "-o", str(place / "out.jsonl"),
               "--model", model or script_model(FAST), "--served-model-name", "tiny",
               "--kv-cache-memory-bytes", "64MiB", *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == status, result.stderr
    text = (place / "out.jsonl").read_text() if status == 0 else ""
    return [json.loads(entry) for entry in text.splitlines()], result.stderr


class RunBatchTest(unittest.TestCase):
    def test_requests_are_answered_in_order_under_their_custom_ids(self):
        lines = [line("slow", chat("forever?", model="tiny"))]
        lines += [line(f"c{i}", chat("hi?", model="tiny")) for i in range(30)]
        lines += [line("text", {"model": "tiny", "prompt": "hi?", "max_tokens": 5},
                       "/v1/completions")]
        entries, _ = run(lines)
        self.assertEqual([entry["custom_id"] for entry in entries],
                         ["slow"] + [f"c{i}" for i in range(30)] + ["text"])
        self.assertEqual(len({entry["id"] for entry in entries}), len(entries))
        for entry in entries:
            self.assertEqual(set(entry), {"id", "custom_id", "response", "error"})
            self.assertTrue(entry["id"].startswith("batch_req_"))
            self.assertIsNone(entry["error"])
            self.assertEqual(entry["response"]["status_code"], 200)
            self.assertTrue(entry["response"]["request_id"])
        answer = entries[1]["response"]["body"]
        self.assertEqual(answer["object"], "chat.completion")
        self.assertEqual(answer["choices"][0]["message"]["content"], GREETING)
        answer = entries[-1]["response"]["body"]
        self.assertEqual(answer["object"], "text_completion")
        self.assertEqual(answer["choices"][0]["text"], "Hello")

    def test_a_bad_line_is_an_entry_and_the_next_is_answered(self):
        bad = [
            ("{", "invalid_json", None),
            (b'{"custom_id": "\xff"}', "invalid_json", None),
            ("[1]", "invalid_request", None),
            (json.dumps({"method": "POST"}), "invalid_request", "custom_id"),
            (line("", {}), "invalid_request", "custom_id"),
            (line(7, {}), "invalid_request", "custom_id"),
            (line("a1", chat("hi?"), method="GET"), "invalid_request", "method"),
            (line("a2", chat("hi?"), "/metrics"), "invalid_request", "url"),
            (line("a3", "text"), "invalid_request", "body"),
            (line("a4", chat("hi?", stream=True)), "invalid_request", "body.stream"),
            (line("good", chat("hi?")), "duplicate_custom_id", "custom_id"),
            ("[" * 100 + "]" * 100, "invalid_json", None),
        ]
        lines = [line("good", chat("hi?")), "", "   "] + [text for text, _, _ in bad]
        entries, errors = run(lines + [line("last", chat("hi?"))])
        self.assertEqual(len(entries), len(bad) + 2)
        for number, (entry, (text, code, param)) in enumerate(zip(entries[1:], bad), 4):
            self.assertIsNone(entry["response"], text)
            self.assertEqual(entry["error"]["code"], code, text)
            self.assertEqual(entry["error"]["param"], param, text)
            self.assertEqual(entry["error"]["line"], number)
            self.assertTrue(entry["error"]["message"])
        self.assertEqual([entries[0]["custom_id"], entries[-1]["custom_id"]], ["good", "last"])
        self.assertEqual(entries[-1]["response"]["status_code"], 200)
        self.assertIn(f"{len(bad) + 2} read, 2 answered, {len(bad)} failed", errors)

    def test_what_the_server_refuses_has_the_servers_answer(self):
        entries, _ = run([
            line("m", chat("hi?", model="other")),
            line("t", chat("hi?", temperature=9)),
            line("n", chat("hi?", max_tokens=100000)),
            line("ok", chat("hi?")),
        ])
        statuses = [entry["response"]["status_code"] for entry in entries]
        self.assertEqual(statuses, [404, 400, 400, 200])
        self.assertEqual(entries[1]["response"]["body"]["error"]["param"], "temperature")
        self.assertEqual({entry["error"] for entry in entries}, {None})

    def test_embeddings_and_scores_are_answered_too(self):
        entries, _ = run([
            line("e", {"input": ["hi?", "forever?"], "normalize": False}, "/v1/embeddings"),
            line("s", {"text_1": "hi?", "text_2": ["hi?", "x"]}, "/v1/score"),
            line("t", {"text_1": "hi?", "text_2": "x"}, "/score"),
        ])
        bodies = [entry["response"]["body"] for entry in entries]
        self.assertEqual([one["embedding"] for one in bodies[0]["data"]],
                         [[ord("H"), 0.0], [ord("x"), 0.0]])
        self.assertEqual([len(body["data"]) for body in bodies], [2, 2, 1])
        self.assertAlmostEqual(bodies[1]["data"][0]["score"], 1.0, places=5)

    def test_a_step_that_fails_is_the_answer_of_its_request(self):
        entries, errors = run([line("e", chat("error?"))])
        self.assertEqual(entries[0]["response"]["status_code"], 500)
        self.assertIn("the script says no", entries[0]["response"]["body"]["error"]["message"])
        self.assertIn("0 answered, 1 failed", errors)

    def test_a_line_that_is_too_long_is_an_entry(self):
        entries, _ = run([line("a", chat("x" * (17 << 20))), line("b", chat("hi?"))])
        self.assertEqual(entries[0]["error"]["code"], "line_too_long")
        self.assertEqual(entries[1]["response"]["status_code"], 200)

    def test_more_lines_than_run_at_once(self):
        count = 700
        entries, _ = run([line(f"c{i}", chat("hi?", n=2)) for i in range(count)], None,
                         "--max-num-seqs", "8")
        self.assertEqual([entry["custom_id"] for entry in entries],
                         [f"c{i}" for i in range(count)])
        self.assertEqual({entry["response"]["status_code"] for entry in entries}, {200})

    def test_an_empty_batch_gives_an_empty_file(self):
        self.assertEqual(run([])[0], [])

    def test_unusable_files_and_models_are_errors(self):
        place = folder()
        path = place / "in.jsonl"
        path.write_text(line("a", chat("hi?")) + "\n")
        model = script_model(FAST)
        for flags, message in (
            (["-i", str(place / "none"), "-o", str(place / "out")], "cannot open"),
            (["-i", str(path), "-o", str(path)], "is the input too"),
            (["-i", str(path), "-o", str(place / "no" / "out")], "cannot write"),
            (["-i", str(path)], "output-file"),
        ):
            result = subprocess.run([KUN, "run-batch", "--model", model, *flags],
                                    capture_output=True, text=True, timeout=60, check=False)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(message, result.stderr)
        self.assertEqual(len(path.read_text().splitlines()), 1)

    def test_the_default_model_answers_as_kun_complete_does(self):
        prompt = "The capital of France is"
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "model": "tiny"}
        entries, _ = run([line("a", body, "/v1/completions"), line("b", chat("Hi", max_tokens=8))],
                         MODEL)
        result = subprocess.run([KUN, "complete", MODEL, "--prompt", prompt, "--max-tokens", "12",
                                 "--temperature", "0", "--json"],
                                capture_output=True, text=True, timeout=120, check=True)
        text = entries[0]["response"]["body"]["choices"][0]["text"]
        self.assertEqual(text, json.loads(result.stdout)["text"])
        self.assertEqual(entries[1]["response"]["body"]["usage"]["completion_tokens"], 8)


if __name__ == "__main__":
    unittest.main()
