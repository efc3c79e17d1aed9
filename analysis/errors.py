"""Errors of the analysis."""

from __future__ import annotations


class InputError(Exception):
    """The input cannot be analysed. The text is one sentence: what was found, what is needed (exit code 2)."""
