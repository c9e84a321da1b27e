#!/usr/bin/env python3
"""Reads a JUnit file that ctest wrote and prints "passed failed skipped" on standard output.

Why a test was skipped goes to standard error, each reason once with the number of tests: a skip
that nobody reads is a hole.
"""

import collections
import re
import sys
import xml.etree.ElementTree as tree


def skip_reason(case):
    output = case.findtext("system-out") or ""
    # GoogleTest prints "file:line: Skipped", then the message.
    if found := re.search(r": Skipped\n(.+)", output):
        return found[1].strip()
    return "disabled in its source" if case.get("status") == "disabled" else "no reason given"


def is_skip(case):
    """A test whose program is missing is "notrun" as well, and has not been skipped but lost."""
    skipped = case.find("skipped")
    message = skipped.get("message", "") if skipped is not None else ""
    return case.get("status") == "disabled" or message.startswith("SKIP_")


def main(path):
    counts = collections.Counter(passed=0, failed=0, skipped=0)
    reasons, failures = collections.Counter(), []
    for case in tree.parse(path).getroot().iter("testcase"):
        if case.get("status") == "run":
            counts["passed"] += 1
        elif is_skip(case):
            counts["skipped"] += 1
            reasons[skip_reason(case)] += 1
        else:
            counts["failed"] += 1
            failures.append(case.get("name"))
    for reason, count in sorted(reasons.items()):
        print(f"  skipped {count}: {reason}", file=sys.stderr)
    for name in failures:
        print(f"  FAILED: {name}", file=sys.stderr)
    print(counts["passed"], counts["failed"], counts["skipped"])


if __name__ == "__main__":
    main(sys.argv[1])
