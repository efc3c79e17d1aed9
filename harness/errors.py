"""The errors a user can act on. Each carries the exit code of the command that meets it."""

from __future__ import annotations


class HarnessError(Exception):
    """A problem told in one sentence, without a traceback."""

    exit_code: int


class InputError(HarnessError):
    """The user gave something wrong: says the field, its value, what is needed and the nearest right value."""

    exit_code = 2


class EnvironmentProblem(HarnessError):
    """The machine lacks something: the disk, the cluster, a missing package."""

    exit_code = 3
