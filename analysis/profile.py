"""python -m analysis profile DIR/<sweep>: what a profile says, beside the bound and the published ratios."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from analysis.console import plain_console
from analysis.errors import InputError
from analysis.growth import beside_published, growths
from analysis.growth_words import growth_rows
from analysis.labels import digits
from analysis.profile_figure import draw
from analysis.profile_file import Profile, read_profile
from analysis.profile_summary import Beside, rates_of, reference_batch, sentences, with_bounds

FACTORS = (2, 4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("sweep", type=Path, help="folder of the sweep, such as results/throughput")


def run(options: argparse.Namespace) -> int:
    """Print the profile; write points.csv, growth.csv and the figure to <sweep>/profile."""
    profile = read_profile(options.sweep)
    if profile is None:
        raise InputError(f"{options.sweep}: no profile.json; python -m harness profile with its sweep file writes it")
    folder = options.sweep / "profile"
    folder.mkdir(parents=True, exist_ok=True)
    curves = with_bounds(profile)
    tables = {"points": points_table(curves), "growth": growth_table(profile)}
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    draw(curves, folder)
    curves_of = {phase: [rates] for phase, rates in rates_of(profile).items()}
    rows = growth_rows(beside_published(curves_of, reference_batch(profile)))
    _print(sentences(profile, curves), tables["points"], rows)
    print(f"\n{folder}: profile.png, profile.svg, points.csv, growth.csv")
    return 0


def points_table(curves: Beside) -> pd.DataFrame:
    """A row for each arm and phase: rates with limits, what was in flight, the bound and the share of it."""
    rows = []
    for phase, own in curves.items():
        for curve, bound in own:
            for place, point in enumerate(curve.points):
                row: dict[str, Any] = {"phase": phase, "arm": point.arm, "train_batch": point.train_batch}
                row |= {"batch": int(curve.batch_A[place]), "in_flight_mean": point.in_flight_mean}
                row |= {"tail_frac": point.tail_frac, "rounds": point.rounds}
                for name, rate in (("responses", point.responses_per_s), ("tokens", point.tokens_per_s)):
                    low, high = rate.ci95
                    row |= {f"{name}_per_s": rate.estimate, f"{name}_low": low, f"{name}_high": high}
                row["share_of_bound"] = None if bound is None else float(bound.share_A[place])
                rows.append(row)
    return pd.DataFrame(rows)


def growth_table(profile: Profile) -> pd.DataFrame:
    """A row for each pair of batches that are a factor of 2 or 4 apart: how much longer the larger takes."""
    rows = []
    for phase, rates in rates_of(profile).items():
        for factor in FACTORS:
            for pair in growths(rates, factor):
                shares = pair.fixed_frac
                row: dict[str, Any] = {"phase": phase, "factor": factor}
                row |= {"smaller": pair.smaller, "larger": pair.larger}
                row |= {"time_ratio": pair.ratio.estimate, "low": pair.ratio.low, "high": pair.ratio.high}
                rows.append(row | {"fixed_frac": shares.estimate, "fixed_low": shares.low, "fixed_high": shares.high})
    return pd.DataFrame(rows)


def _print(texts: list[str], points: pd.DataFrame, rows: list[dict[str, str]]) -> None:
    console = plain_console()
    for sentence in texts:
        console.print(sentence, soft_wrap=True)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("phase", "arm", "batch", "responses/s", "95% interval", "tokens/s", "in flight", "tail", "of bound"):
        table.add_column(title, justify="left" if title in ("phase", "arm") else "right", no_wrap=True)
    for row in points.to_dict("records"):
        limits = [row["responses_low"], row["responses_high"]]
        known = not any(pd.isna(limit) for limit in limits)
        table.add_row(
            row["phase"],
            row["arm"],
            f"{row['batch']:,}",
            digits(row["responses_per_s"]),
            " to ".join(map(digits, limits)) if known else "-",
            digits(row["tokens_per_s"]),
            "-" if pd.isna(row["in_flight_mean"]) else f"{row['in_flight_mean']:,.1f}",
            "-" if pd.isna(row["tail_frac"]) else f"{row['tail_frac']:.0%}",
            "-" if pd.isna(row["share_of_bound"]) else f"{row['share_of_bound']:.1%}",
        )
    console.print(table)
    if rows:
        console.print()
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("how time grows", "published", "here", "regime"):
            table.add_column(title, overflow="fold")
        for cells in rows:
            table.add_row(*cells.values())
        console.print(table)
