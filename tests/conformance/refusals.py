"""A plugin of pytest for the clients' own API tests: those that ask for what Kun refuses on purpose
must be answered with a clear 4xx, and nothing else."""

import os
import re

import pytest

# Where a test is, and why Kun refuses what it asks for.
REFUSED = [
    (r"chat/test_completions.*with_all_params_overload",
     "chat with every field there is: asks for audio, moderation and a web search, forbids all "
     "tokens (max_tokens 0), biases the token 'foo'"),
    (r"chat/test_completions.*_(retrieve|update|delete|list)",
     "stored chat completions: chats are not stored"),
    (r"api_resources/test_completions.*with_all_params_overload",
     "completions with every field there is: biases the token 'foo', best_of 0"),
    (r"test_models.*_delete", "deleting a model: the models served are the operator's"),
    (r"test_responses.*with_all_params_overload",
     "a response with every field there is: background, conversation, prompt templates"),
    (r"test_responses.*_create_overload",
     "a response to nothing: these tests leave out `input`; test_strict.py has one with it"),
    (r"test_responses.*_(retrieve|delete)", "a stored response of another server"),
    (r"test_responses.*_(cancel|compact)", "cancelling and compacting responses: no such routes"),
    (r"test_messages.*_create_with_all_params",
     "a message with every field there is: containers, skills, diagnostics"),
    (r"responses/test_input", "items and token counts of responses: no such routes"),
]
# What the client itself refuses before it sends anything.
LOCAL = re.compile(r"path_params")


def pytest_collection_modifyitems(items):
    import anthropic
    import openai

    notes = open(os.environ["KUN_NOTES"], "a", encoding="utf-8")
    for item in items:
        if LOCAL.search(item.nodeid):
            continue
        for pattern, reason in REFUSED:
            if re.search(pattern, item.nodeid):
                raises = (openai.APIStatusError, anthropic.APIStatusError)
                item.add_marker(pytest.mark.xfail(raises=raises, strict=True, reason=reason))
                notes.write(f"* {reason}\n")
                break
    notes.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    status = getattr(call.excinfo.value, "status_code", 400) if call.excinfo else 400
    if not 400 <= status < 500:
        report = outcome.get_result()
        report.outcome = "failed"
        report.longrepr = f"answered with status {status}"
