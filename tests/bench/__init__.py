"""Measurements of speed: python -m tests.bench [NAME ...]. No test; its numbers are this machine's."""
