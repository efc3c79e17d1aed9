"""Runs batch-size experiments for reinforcement learning of language models."""
