"""Joining Ray where it does not come up at once. Ray itself is not started here."""

from __future__ import annotations

from typing import Any

import pytest

from harness.cluster import connection
from harness.errors import EnvironmentProblem
from harness.execution import ExecutionConfig


class LateRay:
    """ray.init that fails so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        self.failures, self.tried, self.left = failures, 0, 0
        monkeypatch.setattr(connection.ray, "init", self.init)
        monkeypatch.setattr(connection.ray, "shutdown", self.shutdown)
        monkeypatch.setattr(connection.time, "sleep", lambda seconds: None)
        # connect takes handlers of Ray's away, which other tests' Ray may need.
        for module, name in (("worker", "listen_error_messages"), ("utils", "set_sigterm_handler")):
            monkeypatch.setattr(f"ray._private.{module}.{name}", None)

    def init(self, *_: Any, **__: Any) -> None:
        self.tried += 1
        if self.tried <= self.failures:
            raise Exception("The current node timed out during startup.")

    def shutdown(self) -> None:
        self.left += 1


def test_a_node_that_is_late_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    late = LateRay(monkeypatch, failures=2)
    connection.connect(ExecutionConfig())
    assert (late.tried, late.left) == (3, 2)


@pytest.mark.parametrize(
    ("address", "tries", "what"),
    [
        (None, 3, "Ray does not start here, tried 3 times .*very busy machine.*: The current node timed out"),
        ("auto", 1, "the Ray cluster at RAY_ADDRESS=auto cannot be reached: The current node timed out"),
    ],
)
def test_one_that_never_comes_up_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, address: str | None, tries: int, what: str
) -> None:
    if address is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", address)
    late = LateRay(monkeypatch, failures=99)
    with pytest.raises(EnvironmentProblem, match=what):
        connection.connect(ExecutionConfig())
    assert late.tried == tries
