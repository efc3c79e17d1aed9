"""The per-layer bound: worked numbers, the presets, the published ratios, what fits, and what a user gets wrong."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import bound, presets, roofline_figure
from analysis.__main__ import main
from analysis.errors import InputError

TINY = bound.Decoder("tiny", 8, 16, 3, 4, 2, 2, 10, True, 2, 0, None, "")


def test_the_layer_is_counted_as_worked_by_hand() -> None:
    """d 8, f 16, 4 and 2 heads of 2: W = 2*8*8 + 2*8*4 + 3*8*16 = 576. A = 17*8 + 6*16 + 6*8 + 4*4 = 296 numbers.

    Decode at L = 5 in bf16: KV 2*2*2*5*2 = 80 bytes, FLOPs 2*576 + 4*8*5 = 1312.
    """
    assert (TINY.layer_weights, bound.activation_numbers(TINY)) == (576, 296)
    assert bound.decode_layer(TINY, 5, "bf16") == bound.Work(2 * 576, 80, 592, 1312)
    assert bound.decode_layer(TINY, 5, "fp8") == bound.Work(576, 40, 296, 1312), "a byte a number"
    # Training: 3 (2*576*5 + 4*8*25/2) FLOPs a sequence; the weights three times; 3 * 5 tokens of activations.
    assert bound.training_layer(TINY, 5, 5, "bf16") == bound.Work(6 * 576, 0, 15 * 592, 3 * (5760 + 400))


def test_the_model_is_its_layers_and_its_head() -> None:
    """Head: 10 * 8 weights, 10 + 5*8 numbers a token, 160 FLOPs. Tied: 3*576 + 80 weights in all."""
    assert TINY.weights == 1808
    layers = bound.decode_layer(TINY, 5, "bf16") * 3
    assert bound.decode_model(TINY, 5, "bf16") == layers + bound.Work(160, 0, 100, 160)
    assert bound.kv_bytes(TINY, 5, "bf16") == 3 * 80


def test_windowed_layers_stop_reading_at_their_window() -> None:
    """Two of three layers keep 4 tokens: the KV cache of 10 tokens is 10 + 2*4 tokens of 16 bytes."""
    windowed = bound.Decoder("w", 8, 16, 3, 4, 2, 2, 10, True, 2, 2, 4, "")
    assert windowed.layers_by_context(10) == [(1, 10), (2, 4)]
    assert windowed.layers_by_context(3) == [(3, 3)]
    assert bound.kv_bytes(windowed, 10, "bf16") == 18 * 16
    # Of 10 tokens each sees 4 at most: 1 + 2 + 3 + 7*4 = 34 pairs, 40 - 8 = 32 without the diagonal's half.
    assert bound.training_layer(windowed, 10, 4, "bf16").sequence_flops == 3 * (2 * 576 * 10 + 4 * 8 * 32)


def test_memory_bound_latency_follows_rho_and_halves_at_its_inverse() -> None:
    work, hardware = bound.Work(100, 10, 0, 1), bound.Hardware(1e9, 1, 0)
    times = bound.bound_s(work, hardware, np.array([1, 4, 10]))
    assert times / times[0] == pytest.approx([1, (1 + 0.4) / 1.1, 2 / 1.1])
    assert bound.batch_at_share(work, hardware, 0.5) == pytest.approx(1 / work.rho)
    assert bound.plateau_per_s(work, hardware) == 0.1
    assert bound.compute_bound_from(work, hardware) is None
    for share in (0.5, 0.9):
        batch = bound.batch_at_share(work, bound.Hardware(0.05, 1, 0), share)
        rate = batch / bound.bound_s(work, bound.Hardware(0.05, 1, 0), np.array([batch]))[0]
        assert rate == pytest.approx(share / 20), "arithmetic, 20 s a sequence, sets this plateau"


@pytest.mark.parametrize("gpu", presets.gpus())
def test_the_inferred_configuration_gives_the_published_ratios_on_every_gpu(gpu: str) -> None:
    """2.32x the latency, 13.8x the throughput at 32 times the batch; training exactly 32x. A is 344 KB."""
    shown, hardware = presets.inferred(), presets.find_gpu(gpu).hardware("bf16")
    model, ends = presets.find_model(shown["model"]), np.array([1, 32])
    assert shown["status"] == "inferred"
    assert 2 * bound.activation_numbers(model) == 344064
    first, last = bound.bound_s(bound.decode_layer(model, shown["context"], "bf16"), hardware, ends)
    assert last / first == pytest.approx(2.317, abs=5e-4)
    assert 32 * first / last == pytest.approx(13.81, abs=5e-3)
    training = bound.training_layer(model, shown["context"], shown["context"], "bf16")
    first, last = bound.bound_s(training, hardware, ends)
    assert last / first == 32


@pytest.mark.parametrize("row", presets.rows("models.csv"), ids=lambda row: row["name"])
def test_the_shipped_models_have_the_parameters_that_their_publishers_state(row: dict[str, str]) -> None:
    """Vectors are not counted; they and the rounding of three digits stay within half a percent."""
    assert presets.models()[row["name"]].weights / 1e9 == pytest.approx(float(row["billion_parameters"]), rel=5e-3)


def test_every_preset_says_where_its_numbers_are_from() -> None:
    models, gpus = presets.models(), presets.gpus()
    assert len(models) >= 10 and len(gpus) >= 6
    assert all("https://" in preset.source for preset in [*models.values(), *gpus.values()])
    assert gpus["h100"].peak_flop_per_s == {"bf16": 989.4e12, "fp16": 989.4e12, "fp8": 1978.9e12}


def test_the_data_files_are_part_of_the_package() -> None:
    root = Path(__file__).parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["analysis"]
    shipped = {path for pattern in patterns for path in (root / "analysis").glob(pattern)}
    needed = {path for folder in ("data", "templates") for path in (root / "analysis" / folder).iterdir()}
    assert needed and needed <= shipped


@pytest.mark.parametrize("kind", presets.NORMS_PER_LAYER)
def test_a_config_json_counts_what_transformers_builds(tmp_path: Path, kind: str) -> None:
    """Matrices of a layer and of the model, and norms of hidden size, against the real module."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    sizes = {"hidden_size": 80, "intermediate_size": 112, "num_hidden_layers": 6, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = CONFIG_MAPPING[kind](**sizes, **heads, **tokens)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    model, layer = presets.find_model(str(tmp_path)), built.model.layers[0]
    assert model.layer_weights == sum(weight.numel() for weight in layer.parameters() if weight.ndim == 2)
    assert model.weights == sum(weight.numel() for weight in built.parameters() if weight.ndim == 2)
    norms = [weight for name, weight in layer.named_parameters() if "norm" in name and weight.shape == (80,)]
    assert model.norms_per_layer == len(norms)


def test_a_config_json_may_leave_out_what_follows(tmp_path: Path) -> None:
    """No KV heads: one per head; no head_dim: d / heads. Sliding windows of every second layer are counted."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}))
    model = presets.find_model(str(path))
    assert (model.num_kv_heads, model.head_dim, model.windowed_layers) == (4, 16, 0)
    kinds = ["sliding_attention", "full_attention"] * 2
    described = {"model_type": "gemma2", "num_hidden_layers": 4, "layer_types": kinds, "sliding_window": 32}
    path.write_text(json.dumps(described))
    model = presets.find_model(str(tmp_path))
    assert model.layers_by_context(100) == [(2, 100), (2, 32)]


def test_the_command_answers_for_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-8B on an H100, L = 4096: 16.38 GB of weights, 36 * 4 KB * 4096 = 0.604 GB a sequence.

    (72 - 16.38) / 0.604 = 92 sequences.
    """
    arguments = ["--model", "qwen3-8b", "--context", "4096", "--batch", "1..32", "--gpu", "H100"]
    assert main(["roofline", *arguments, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "32 times as long to train on and 2.32 times as long to decode, at 13.8 times the tokens" in printed
    assert "92 sequences fit" in printed and "inferred, not published" in printed
    report, table = json.loads((tmp_path / "roofline.json").read_text()), pd.read_csv(tmp_path / "roofline.csv")
    assert report["memory"]["batch_limit"] == 92
    assert report["memory"]["kv_bytes_per_sequence"] == 36 * 4096 * 4096
    assert list(table["batch"]) == list(range(1, 33)) and table["fits"].all()
    assert table["decode_layer_ratio"].iloc[-1] == pytest.approx(2.317, abs=5e-4)
    half = report["whole_model"]["half_plateau_batch"]
    rate = np.interp(half, table["batch"], table["share_of_plateau"])
    assert rate == pytest.approx(0.5, abs=1e-3)
    assert (tmp_path / "roofline.png").stat().st_size > 10_000 and (tmp_path / "roofline.svg").is_file()


def test_activations_that_dominate_are_said_and_can_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SmolLM2-135M at 128 tokens: without activations rho is the KV cache over the weights.

    A layer: 2 * 3 * 64 * 128 * 2 bytes of cache, 3,538,944 weights of 2 bytes.
    """
    setting = ["roofline", "--model", "smollm2-135m", "--context", "128", "--out", str(tmp_path)]
    assert main(setting) == 0
    assert "kernels that keep them on the chip can be faster (--fused)" in capsys.readouterr().out
    assert main([*setting, "--fused"]) == 0
    assert "--fused" not in capsys.readouterr().out
    report = json.loads((tmp_path / "roofline.json").read_text())
    assert report["fused"] and report["activation_bytes"] == 0
    assert report["layer"]["rho"] == 2 * 3 * 64 * 128 * 2 / (2 * 3538944)


def test_more_gpus_hold_more_and_keep_a_kv_head_each(tmp_path: Path) -> None:
    """Qwen2.5-7B has 4 KV heads: 7 GPUs split its 28 heads, but hold 7/4 of its KV cache."""
    assert main(["roofline", "--model", "qwen2.5-7b", "--gpu", "l4", "--gpus", "7", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "roofline.json").read_text())
    memory, one = report["memory"], bound.kv_bytes(presets.find_model("qwen2.5-7b"), 4096, "bf16")
    assert memory["kv_bytes_per_sequence"] == one * 7 / 4
    assert memory["batch_limit"] == (7 * 24e9 * 0.9 - memory["weight_bytes"]) // (one * 7 / 4)
    assert report["where"] == "7 x L4 24 GB"


def test_a_model_that_does_not_fit_says_how_many_gpus_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """141 GB of weights, 72 GB usable on each."""
    assert main(["roofline", "--model", "llama-3.3-70b", "--out", str(tmp_path)]) == 0
    assert "the weights do not fit; 2 of this GPU would hold them" in capsys.readouterr().out
    report = json.loads((tmp_path / "roofline.json").read_text())
    assert (report["memory"]["batch_limit"], report["memory"]["share_of_plateau_at_limit"]) == (0, 0)
    tight = ["roofline", "--memory-gb", "18.4", "--margin", "0.1", "--batch", "16", "--out", str(tmp_path)]
    assert main(tight) == 0, "a single batch has no ratios, but a rate"
    printed = capsys.readouterr().out
    assert "the weights fit, but not one sequence" in printed and "times the batch" not in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--model qwen38b", "--model: qwen38b is neither a known model nor a config.json .* nearest is qwen3-8b;"),
        ("--gpu A100", "--gpu: A100 is not known; nearest is a100-40gb or a100-80gb; known: "),
        ("--dtype int3", "--dtype: int3 is not known; known: bf16, fp16, fp8"),
        ("--gpu a100-40gb --dtype fp8", "--dtype: A100 SXM 40 GB does not compute in fp8; it computes in bf16, fp16"),
        ("--batch 8..1", "--batch: '8..1'; needed is a range such as 1..32"),
        ("--batch 0,4", "--batch: '0,4'; needed is"),
        ("--context 0", "--context: 0; needed is a number of tokens, 1 or more"),
        ("--gpus 5", "--gpus: 5; needed is a number that divides the 32 heads of qwen3-8b; nearest is 4"),
        ("--margin 1", "--margin: 1; needed is a share"),
        ("--memory-gb nan", "--memory-gb: nan; needed is a size above 0"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roofline", *arguments.split(), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    with pytest.raises(InputError, match=sentence):
        raise InputError(said.removeprefix("error: "))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "has no model_type"),
        ('{"model_type": "gpt2"}', "is of model_type gpt2, whose layers the bound does not describe"),
        ('{"model_type": "qwen3_moe"}', "model_type qwen3_moe, .* nearest is qwen3;"),
        ('{"model_type": "nothing_known"}', "cannot be read by transformers"),
        ('{"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["linear_attention"]}', "linear_attention"),
    ],
)
def test_a_config_json_that_is_not_understood_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=sentence):
        presets.find_model(str(tmp_path))


def test_measured_rates_stand_beside_the_bound() -> None:
    """Half the bound at every batch is a share of 0.5, and the figure shows both curves."""
    work, hardware, in_flight = bound.Work(100, 10, 0, 1), bound.Hardware(1e9, 1, 0), np.array([1.0, 8.0, 64.0])
    possible = in_flight / bound.bound_s(work, hardware, in_flight)
    assert bound.attained_share(work, hardware, in_flight, possible / 2) == pytest.approx([0.5] * 3)
    axes = Figure().subplots()
    roofline_figure.throughput(axes, (in_flight, possible), measured=(in_flight, possible / 2))
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert lines["measured"] == pytest.approx(lines["bound"] / 2)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
