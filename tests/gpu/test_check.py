"""The GPU check runs here on the CPU with a small model; on a GPU it is the same code."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config

from tests.gpu.check import check, data_sheet, half_billion, main, sizes_of


def test_the_check_agrees_with_the_cpu_on_the_cpu() -> None:
    small = Qwen2Config(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=512,
        tie_word_embeddings=True,
    )
    found = check("cpu", small, (1, 2), (1,))
    assert found["agrees"] and found["update_relative_l2"] == 0.0
    assert [row["in_flight"] for row in found["decode"]] == [1, 2]
    assert all(row["seconds"] > 0 and row["bound_s"] is None for row in found["decode"] + found["training"])


def test_the_model_is_of_the_half_billion_class() -> None:
    assert 0.4e9 < sizes_of(half_billion()).weights < 0.6e9


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: the check would run")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == "skipped: torch sees no GPU here\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(tmp_path: object) -> None:
    assert data_sheet("cuda") is None or data_sheet("cuda").peak_flop_per_s > 1e12  # type: ignore[union-attr]
    assert main(["--out", f"{tmp_path}/gpu.json"]) == 0
