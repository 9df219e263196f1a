"""`rewardlab push`: a checkpoint or a set of pairs to a hub repository, with a card that carries what was measured."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rewardlab.cli.options import TRAINING, Images, app
from rewardlab.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rewardlab.cli.push_parts import Parcel
    from rewardlab.data.hub import HubRepo


@app.command("push", rich_help_panel=TRAINING)
def push_command(
    folder: Annotated[Path, typer.Argument(help="A checkpoint (OUT/final, a merged one), or pairs: .parquet, .jsonl, folder.")],
    repo: Annotated[str, typer.Argument(help="OWNER/NAME on the Hub (HF_ENDPOINT names another hub).")],
    report: Annotated[
        Optional[list[Path]], typer.Option("--report", help="Folder of a `bench run` of this checkpoint; repeat for several.")
    ] = None,
    base_model: Annotated[
        Optional[str], typer.Option("--base-model", help="OWNER/NAME of the base, where the checkpoint names a folder.")
    ] = None,
    licence: Annotated[Optional[str], typer.Option("--license", help="As the Hub names it: apache-2.0, cc-by-4.0, ...")] = None,
    dataset: Annotated[
        Optional[list[str]], typer.Option("--dataset", help="OWNER/NAME it was trained on; repeat for several.")
    ] = None,
    images: Images = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
    replace_card: Annotated[
        bool, typer.Option("--replace-card", help="Write README.md anew, over what others wrote in it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the card, list the files sent and deleted; send nothing.")
    ] = False,
) -> None:
    """Push a checkpoint or a set of pairs to the Hub, with a card: accuracy in both orders, template hash, command, versions.

    Files, card and deletions are one commit: a push that was cut off changes nothing, and the same command goes on. A README
    that somebody wrote stays: only the section between rewardlab's marks is replaced.
    `HF_TOKEN=... rewardlab push runs/rl/final me/my-judge --report runs/bench --license apache-2.0`
    """
    from rewardlab.cli.push_parts import checkpoint_parcel, is_checkpoint, pairs_parcel
    from rewardlab.data.hub import HubRepo
    from rewardlab.reporting.cards import README, author_text, merge_card

    given: dict[str, Any] = {"license": licence, "datasets": dataset}
    with ExitStack() as stack:
        if is_checkpoint(folder):
            target = HubRepo(repo, "model")
            parcel = checkpoint_parcel(folder, repo, report or [], base_model=base_model, **given)
        elif report or base_model:
            raise ConfigError(f"{folder}: is no checkpoint; --report and --base-model belong to one")
        else:
            target = HubRepo(repo, "dataset")
            parcel = stack.enter_context(pairs_parcel(folder, repo, images=images, **given))
        local = parcel.readme
        remote = None if dry_run else target.read_readme()
        human = None if replace_card else _own_readme(folder, local, remote)
        options = [name for name, value in {**given, "base_model": base_model}.items() if value]
        card = merge_card(human or "", parcel.front, parcel.body, given=options)
        if dry_run:
            _show(parcel, card, target)
            return
        url = target.create(private=private)
        deleted = parcel.leftovers(target.list_files())
        changed = {**parcel.changed, README: card.encode()}
        commit = target.upload(parcel.folder, parcel.files, deleted=deleted, changed=changed, message="rewardlab push")
    typer.echo(f"{len(parcel.files):,} files and the card: {url} ({commit})")
    _say_deleted(deleted)
    if human is not None and author_text(human):
        typer.echo(
            f"{README}: what others wrote in it stays; rewardlab's section is new (--replace-card writes all of it anew)"
        )
    _say(parcel)


def _own_readme(folder: Path, local: str | None, remote: str | None) -> str | None:
    """Return the README to keep the text of: the repository's, or else the folder's. Raise DataError where both hold texts that
    differ."""
    from rewardlab.reporting.cards import author_text

    written = [text for text in (local, remote) if text is not None and author_text(text)]
    if len(written) == 2 and author_text(written[0]) != author_text(written[1]):
        raise DataError(
            f"{folder}: README.md here and that of the repository hold different texts; copy one over the other, or give "
            "--replace-card to write it anew"
        )
    return written[0] if written else remote or local


def _show(parcel: Parcel, card: str, target: HubRepo) -> None:
    from rewardlab.models.hub import reaches_hub
    from rewardlab.reporting.cards import README

    typer.echo(card)
    for name in parcel.files:
        typer.echo(f"{(parcel.folder / name).stat().st_size:>14,}  {name}")
    for name in (*parcel.changed, README):
        typer.echo(f"{'written':>14}  {name}")
    if reaches_hub():
        _say_deleted(parcel.leftovers(target.list_files()))
    else:
        typer.echo("no hub can be reached, so that what a push would delete there is not known")
    _say(parcel)


def _say_deleted(names: list[str]) -> None:
    """Name the files of an earlier push that are not among the new ones."""
    for name in names:
        typer.echo(f"{'deleted':>14}  {name}")


def _say(parcel: Parcel) -> None:
    if parcel.left_out:
        typer.echo(f"left out: {', '.join(parcel.left_out)}")
    for note in parcel.notes:
        typer.echo(note)
