"""Files of the model and data hub. The only file that talks to it.

A commit names what never changes, so files that are here are taken without asking the hub.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Literal

from harness.errors import EnvironmentProblem, InputError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
_WHERE = {"model": "huggingface.co", "dataset": "huggingface.co/datasets"}


def is_hub_id(name: str) -> bool:
    """Whether a name is shaped like owner/name.

    >>> is_hub_id("Qwen/Qwen2.5-1.5B-Instruct"), is_hub_id("./models/mine"), is_hub_id("tiny-llama")
    (True, False, False)
    """
    return HUB_ID.fullmatch(name) is not None


def check_commit(kind: Literal["model", "dataset"], field: str, name: str, revision: str | None) -> None:
    """InputError unless the revision of a hub id is a whole commit: a branch moves, and with it the sweep."""
    if revision is None or COMMIT.fullmatch(revision) is None:
        found = "unset" if revision is None else repr(revision)
        raise InputError(
            f"{field}: {found}; {name} is on the hub, where a name alone moves, so it needs a commit of 40 hexadecimal "
            f"digits: {_WHERE[kind]}/{name}/commits/main lists them"
        )


def snapshot(
    kind: Literal["model", "dataset"],
    field: str,
    name: str,
    commit: str,
    only: list[str] | None = None,
    leave_out: list[str] | None = None,
) -> Path:
    """The local folder of a repository at a commit, downloaded if need be.

    `only` and `leave_out` are patterns of files, `field` is the field of the sweep file that named it. InputError when
    the hub has no such thing, EnvironmentProblem when it is not here and the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its attempts end in one sentence of ours
    try:
        return Path(
            snapshot_download(name, repo_type=kind, revision=commit, allow_patterns=only, ignore_patterns=leave_out)
        )
    except GatedRepoError:
        problem = f"{name} asks for an agreement; needs one, and a login: hf auth login"
    except RevisionNotFoundError:
        problem = f"{name} has no commit {commit}; {_WHERE[kind]}/{name}/commits/main lists them"
    except RepositoryNotFoundError:
        problem = f"the hub has no {kind} {name}, or not for you; needs another name, or a login: hf auth login"
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise EnvironmentProblem(
            f"{field}: {name} at {commit[:8]} is not all on this machine and the hub cannot be reached; needs a "
            f"network, or a local folder instead ({reason})"
        ) from None
    raise InputError(f"{field}: {problem}")
