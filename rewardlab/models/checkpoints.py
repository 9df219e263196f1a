"""The card of a checkpoint folder, ``rewardlab.json``: the prompt template it was trained on, and how it was made.

The card contains the text of a custom template (``FORMAT:FILE``). A folder without a card (a hub checkpoint) takes any
template.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any, BinaryIO

from rewardlab import __version__
from rewardlab.data.files import write_atomic
from rewardlab.errors import CheckpointError, ConfigError
from rewardlab.prompts import DEFAULT_TEMPLATE, TEMPLATE_FORMATS, Template, load_template, own_template

CARD = "rewardlab.json"
VERDICT_TEMPERATURE = "verdict_temperature"  # in a card, what `rewardlab bench calibrate` fitted
_PACKAGES = ("rewardlab", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "openai")


def check_folder(path: str) -> None:
    """Raise CheckpointError for a path of a missing folder, before the hub is queried, or of a folder that is no checkpoint."""
    first, _, rest = path.partition("/")
    is_local = path.startswith((".", "/", "~")) or "/" in rest or (rest and Path(first).is_dir())
    if is_local and not Path(path).is_dir():
        raise CheckpointError(f"{path}: no such folder; expected a checkpoint folder, or a hub id (ORGANISATION/MODEL)")
    if Path(path).is_dir():
        read_card(Path(path))


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that affect results."""
    installed = {}
    for name in _PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def commit() -> str:
    """Return the commit of this source tree, with "+dirty" for uncommitted changes outside of eval/results. Outside a checkout
    return the commit recorded by pip, else the version, as "v1.2.3"."""
    package = Path(__file__).parents[1]
    git = ["git", "-C", str(package)]
    try:
        # An environment may be inside another project's checkout: ours contains this file.
        for command in (["ls-files", "--error-unmatch", "__init__.py"], ["rev-parse", "HEAD"]):
            head = subprocess.run([*git, *command], capture_output=True, text=True, check=True, timeout=10)
        changed = [*git, "status", "--porcelain", "-uno", "--", ":/", ":(exclude,top)eval/results"]
        dirty = subprocess.run(changed, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return _installed_commit(package) or f"v{__version__}"
    return head.stdout.strip() + ("+dirty" if dirty.stdout.strip() else "")


def _installed_commit(package: Path) -> str:
    """Return the commit in pip's record (PEP 610) of the installation of ``package``; "" without one."""
    try:
        installed = distribution("rewardlab")
        if Path(str(installed.locate_file("rewardlab"))).resolve() != package.resolve():
            return ""  # another copy is in use
        return str(json.loads(installed.read_text("direct_url.json") or "{}")["vcs_info"]["commit_id"])
    except (PackageNotFoundError, ValueError, KeyError, TypeError):
        return ""


def weights_id(checkpoint: Path) -> str:
    """Return an identifier of a checkpoint's content, 16 hex digits, the same in any folder and at any time; "" if it is no
    local folder with weights.

    It covers name, dtype, shape and 64 KiB of each tensor (32 at either end), in however many files, and the configs of model,
    tokenizer and processor. A change within a tensor's middle alone is not seen. An adapter's base counts by its content if it
    is a local folder, else by its name.
    """
    tensors = sorted(checkpoint.glob("*.safetensors"))
    if not tensors:
        return ""
    configs = sorted(path for path in checkpoint.iterdir() if path.name in _READ_BY_MODELS or path.suffix == ".jinja")
    content = _content_id(tuple((path, _stamp(path)) for path in (*tensors, *configs)))
    adapter = checkpoint / "adapter_config.json"
    if not adapter.exists():
        return content
    base = str(json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path"))
    if Path(base).resolve() == checkpoint.resolve():  # the base's own weights are beside it
        return content
    return hashlib.sha256(f"{content} {weights_id(Path(base)) or base}".encode()).hexdigest()[:16]


_READ_BY_MODELS = (
    *("config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.json"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
)
_NOT_CONTENT = ("base_model_name_or_path", "_name_or_path", "transformers_version", "peft_version")
_TENSOR_BYTES = 1 << 15  # at either end of a tensor


def _stamp(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


@lru_cache(maxsize=64)
def _content_id(files: tuple[tuple[Path, tuple[int, ...]], ...]) -> str:
    """Return a hash of the content of files; their stamps say until when it holds."""
    facts = list[str]()
    for path, _ in files:
        facts += _tensor_facts(path) if path.suffix == ".safetensors" else [f"{path.name} {_config_text(path)}"]
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()[:16]


def _config_text(path: Path) -> str:
    """Return a config without what says where and with what it was written."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        values = json.loads(text)
    except ValueError:
        return text
    return json.dumps({k: v for k, v in values.items() if k not in _NOT_CONTENT} if isinstance(values, dict) else values)


def _tensor_facts(path: Path) -> list[str]:
    """Return a line for each tensor of a safetensors file; of a file that is none, a line for the whole."""
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length) if length < size else "")
            entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
            parts = {f"{name} {entry['dtype']} {entry['shape']}": tuple(entry["data_offsets"]) for name, entry in entries}
            if not parts or not all(0 <= start <= end <= size for start, end in parts.values()):
                raise ValueError("no tensor, or one outside of the file")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            length, parts = -8, {f"{path.name} {size}": (0, size)}
        return [f"{name} {_ends(file, 8 + length + start, 8 + length + end)}" for name, (start, end) in parts.items()]


def _ends(file: BinaryIO, start: int, end: int) -> str:
    """Return a hash of the bytes at either end of a part of a file."""
    file.seek(start)
    first = file.read(min(_TENSOR_BYTES, end - start))
    file.seek(max(start + len(first), end - _TENSOR_BYTES))
    return hashlib.sha256(first + file.read(max(0, min(_TENSOR_BYTES, end - start - len(first))))).hexdigest()


def write_card(folder: Path, *, template: Template, stage: str, **facts: Any) -> None:
    """Record the template and its hash in ``folder``, for a custom template also its text."""
    card = {"stage": stage, "template": template.name, "template_hash": template.hash}
    if template.name not in TEMPLATE_FORMATS:
        card["template_text"] = template.text
    card_text = json.dumps({**card, "versions": versions(), **facts}, indent=1) + "\n"
    (folder / CARD).write_text(card_text, encoding="utf-8")


def read_card(folder: Path) -> dict[str, Any] | None:
    """Return the card of a checkpoint, None without one. Raise CheckpointError for a folder that is no checkpoint."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder")
    if not any((folder / name).exists() for name in ("config.json", "adapter_config.json")):
        raise CheckpointError(f"{folder}: not a checkpoint (neither config.json nor adapter_config.json in it)")
    path = folder / CARD
    return _read_card_file(path) if path.exists() else None


def _read_card_file(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}); restore or remove it") from error


def add_to_card(folder: Path, **facts: Any) -> None:
    """Add ``facts`` to a checkpoint's card, or replace them, atomically. Raise CheckpointError for a folder without a card."""
    if (card := read_card(folder)) is None:
        raise CheckpointError(
            f"{folder}: has no {CARD}, which training writes next to the weights, so nothing can be added to it"
        )
    write_atomic(folder / CARD, json.dumps({**card, **facts}, indent=1) + "\n")


def load_card(model: str | Path, *, from_hub: bool = False) -> dict[str, Any] | None:
    """Return the card of a folder, or with ``from_hub`` of a hub id; None without one. Raise CheckpointError if it cannot be
    read."""
    if Path(model).exists():
        return read_card(Path(model))
    return _hub_card(str(model)) if from_hub else None


def card_temperature(card: Mapping[str, Any] | None, model: str | Path) -> float:
    """Return the temperature in a card that divides the margins of a checkpoint's verdicts; 1 without one. Raise
    CheckpointError for one that is no positive number."""
    entry = (card or {}).get(VERDICT_TEMPERATURE) or {}
    tau = entry.get("tau", 1.0) if isinstance(entry, Mapping) else entry
    if not isinstance(entry, Mapping) or type(tau) not in (int, float) or not 0 < tau < math.inf:
        raise CheckpointError(f"{model}: the {VERDICT_TEMPERATURE} in its {CARD} is {tau!r}; expected a positive number")
    return float(tau)


def template_for(folder: Path, requested: str | None) -> Template:
    """Return the template to prompt this checkpoint with: the one it was trained on. ``requested`` must not contradict it.

    The text of a custom template comes from the file that ``requested`` names, if that exists, else from the card. Raise
    CheckpointError if the template's hash differs from that of training, or its text is missing.
    """
    return template_of_card(read_card(folder), folder, requested)


def check_template(folder: Path, template: Template) -> None:
    """Raise CheckpointError for a checkpoint that was trained on another template."""
    if (card := read_card(folder)) is not None:
        _check_hash(card, folder, template)


def template_change(model: str | Path, template: Template) -> str:
    """Return the name of the template that a checkpoint folder was trained on if it differs; else ""."""
    card = load_card(model)
    return str(card.get("template")) if card is not None and card.get("template_hash") != template.hash else ""


def template_of_card(card: Mapping[str, Any] | None, folder: Path | str, requested: str | None) -> Template:
    """Return the template for a card as :func:`template_for` does; for None the requested or the default one."""
    if card is None:
        return load_template(requested or DEFAULT_TEMPLATE)
    name = str(card.get("template"))
    verdict_format, is_own, file = name.partition(":")
    if not is_own and name not in TEMPLATE_FORMATS:
        raise CheckpointError(f"{folder}: trained on template {name!r}, which this version does not have")
    if is_own and requested is None and verdict_format.endswith(".py"):
        raise CheckpointError(
            f"{folder}: its answers are parsed by custom code, {verdict_format}, which checkpoints do not "
            f"contain; name it: template={name} (in a config `template: {name}`)"
        )
    is_absent = requested in (None, name) and not Path(file).exists()
    if is_own and (is_absent or (requested is None and "template_text" in card)):
        template = _own_template_of_card(card, folder, name)
    else:
        template = load_template(requested or name)
    _check_hash(card, folder, template)
    return template


def _own_template_of_card(card: Mapping[str, Any], folder: Path | str, name: str) -> Template:
    if not isinstance(text := card.get("template_text"), str):
        raise CheckpointError(
            f"{folder}: was trained on a custom template, {name!r}, and its {CARD} only names a file that does not exist here; "
            "give the file: template=FORMAT:FILE (in a config `template: FORMAT:FILE`)"
        )
    try:
        return own_template(name, text, name.partition(":")[0])
    except ConfigError as error:
        raise CheckpointError(f"{folder}: the template in its {CARD} cannot be used: {error}") from error


def _check_hash(card: Mapping[str, Any], folder: Path | str, template: Template) -> None:
    name, trained = card.get("template"), card.get("template_hash")
    if template.hash != trained:
        raise CheckpointError(
            f"{folder}: was trained on template {name!r} with hash {trained}, but this command's template {template.name!r} "
            f"has hash {template.hash}; use the template it was trained with (template={name}), or train it again"
        )


def load_template_for(model: str | Path, name: str | None, *, from_hub: bool = False) -> Template:
    """Return the template to prompt ``model`` with: for a folder as :func:`template_for`, for a hub id ``name``, or with
    ``from_hub`` that of the card in its repository."""
    return template_of_card(load_card(model, from_hub=from_hub), model, name)


def _hub_card(model: str) -> dict[str, Any] | None:
    """Return the card in a repository of the Hub; None without one, or if offline without one in the cache. Raise
    CheckpointError if the repository cannot be read."""
    from huggingface_hub import hf_hub_download, is_offline_mode
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from rewardlab.models.hub import hub_options

    only_cache = hub_options(model)
    try:
        path = Path(
            hf_hub_download(model, CARD, endpoint=os.environ.get("HF_ENDPOINT") or None, local_files_only=bool(only_cache))
        )
    except LocalEntryNotFoundError as error:
        if only_cache or is_offline_mode():
            return None
        raise _unknown_words(model, error) from error
    except (EntryNotFoundError, HFValidationError):  # no repository has such a name: the engine reports the missing folder
        return None
    except (HfHubHTTPError, OSError) as error:
        raise _unknown_words(model, error) from error
    return _read_card_file(path)


def _unknown_words(model: str, error: Exception) -> CheckpointError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return CheckpointError(
        f"{model}: its {CARD}, which names its prompt template, cannot be read ({reason}); check the name, "
        "`hf auth login` and HF_ENDPOINT, or name a folder"
    )
