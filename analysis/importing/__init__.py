"""Runs of other systems, from their logs to the results format."""
