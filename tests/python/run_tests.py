"""Runs the test_*.py beside it and prints the summary line that test.sh reads."""

import faulthandler
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent


def main():
    faulthandler.dump_traceback_later(540, exit=True)  # a hang shows where
    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("test_*.py"))
    sys.path.insert(0, str(HERE))
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    failed = len({str(test) for test, _ in result.failures + result.errors})
    failed += len(result.unexpectedSuccesses)
    skipped = len(result.skipped)
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
