"""Scripted models for the tests: files in the language of src/models/script_file.h."""

import atexit
import pathlib
import shutil
import tempfile

_FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="kun-python-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)

GREETING = "Hello there, stranger. Bye!"

FAST = f"""
context 512
prompt contains "error?"
  emit "on"
  error "the script says no"
prompt contains "nan?"
  emit "on"
  nan
prompt contains "forever?"
  repeat 400 "xy"
prompt contains "snow?"
  emit 226 152 131 "!"
prompt *
  emit "{GREETING}"
"""

# 2 ms a step: 400 tokens take about a second.
SLOW = f"""
context 2048
step_us 2000
prompt contains "forever?"
  repeat 900 "xy"
prompt *
  emit "{GREETING}"
"""


def script_model(text):
    """The name of a model that says what `text` says."""
    path = _FOLDER / f"{abs(hash(text)):x}.script"
    path.write_text(text)
    return f"script:{path}"


def folder():
    """Where a test may put files."""
    return pathlib.Path(tempfile.mkdtemp(dir=_FOLDER))
