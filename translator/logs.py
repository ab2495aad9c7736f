"""What kvc tells about its work, by topic: `KVC_LOGS=graph,verdicts kvc translate model.py`, or KVC_LOGS=all.

Topics are children of Python's logger "kvc", so that a program that sets up logging itself gets them its own way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

from kvc.diagnostics import KvcError
from kvc.settings import settings

TOPICS: dict[str, str] = {
    "graph": "the captured graph after the graph passes",
    "plan": "the kernels in order, with what each costs at least",
    "specs": "the spec of each kernel",
    "schedules": "which pattern each spec is, and why not a more specific one",
    "verdicts": "each candidate and what became of it",
    "sources": "the source of each verified kernel",
    "dynamo": "what torch.compile hands over, and what runs eagerly",
}


@cache
def _handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[kvc %(topic)s] %(message)s"))
    return handler


def topic(name: str) -> logging.Logger:
    """The logger of a topic. It writes to stderr where KVC_LOGS names it. KVC0106 for an unknown topic there."""
    logger = logging.getLogger(f"kvc.{name}")
    wanted = chosen()
    if name in wanted and not logger.handlers:
        logger.addHandler(_handler())
        logger.addFilter(_Topic(name))
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    elif name not in wanted and logger.handlers:
        logger.removeHandler(_handler())
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
    return logger


class _Topic(logging.Filter):
    """Tells the formatter the topic."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.topic = self.name
        return True


def chosen() -> frozenset[str]:
    """The topics of KVC_LOGS. KVC0106 where one is unknown."""
    names = settings().logs
    known = "\n".join(f"    {name:<10} {text}" for name, text in TOPICS.items())
    for name in names:
        if name not in TOPICS and name != "all":
            raise KvcError("KVC0106", f"KVC_LOGS has no topic {name!r}", hint=f"all, or some of:\n{known}")
    return frozenset(TOPICS if "all" in names else names)


def tell(name: str, text: Callable[[], str]) -> None:
    """Log under a topic what `text` gives; it is not called where nobody listens."""
    logger = topic(name)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(text())
