"""Progress bars: tqdm's where it is installed, else a plain line on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Optional, Union

UseTqdm = Union[bool, Callable[..., Any]]


class _NoBar:
    def update(self, count: int, note: str = "") -> None:
        del count, note

    def close(self) -> None:
        pass


class _PlainBar:
    """Rewrites one line on a terminal, and into a file writes a line now and then."""

    def __init__(self, total: int, desc: str) -> None:
        self._total, self._desc, self._done, self._note = total, desc, 0, ""
        self._started = time.monotonic()
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._interval = 0.1 if self._is_terminal else 10.0
        self._shown_at = self._started

    def update(self, count: int, note: str = "") -> None:
        self._done += count
        self._note = note
        if time.monotonic() - self._shown_at >= self._interval:
            self._show("")

    def close(self) -> None:
        self._show("\n")

    def _show(self, end: str) -> None:
        if sys.stderr is None:
            return
        self._shown_at = time.monotonic()
        elapsed = self._shown_at - self._started
        line = f"{self._desc}: {self._done}/{self._total} [{elapsed:.1f} s{self._note}]"
        begin = "\r" if self._is_terminal else ""
        end = end or ("" if self._is_terminal else "\n")
        print(f"{begin}{line}{end}", end="", file=sys.stderr, flush=True)


class _TqdmBar:
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def update(self, count: int, note: str = "") -> None:
        if note and hasattr(self._bar, "set_postfix_str"):
            self._bar.set_postfix_str(note.lstrip(", "), refresh=False)
        self._bar.update(count)

    def close(self) -> None:
        self._bar.close()


def _tqdm() -> Optional[Callable[..., Any]]:
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return None
    return tqdm  # type: ignore[no-any-return,unused-ignore]


def progress_bar(use_tqdm: UseTqdm, total: int, desc: str) -> Any:
    """A bar with update() and close(); ``use_tqdm`` may be a function that makes tqdm bars."""
    if not use_tqdm:
        return _NoBar()
    make = use_tqdm if callable(use_tqdm) else _tqdm()
    if make is None:
        return _PlainBar(total, desc)
    return _TqdmBar(make(total=total, desc=desc, dynamic_ncols=True))
