"""`lockstep zoo list | path | card | evaluate | train | fetch`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.checkpoint import cache_dir, resolve_model, shipped_zoo
from engine.checkpoint.resolve import SHIPPED_ZOO
from engine.errors import CheckpointError
from harness.zoo.card import ABOUT
from harness.zoo.catalog import CATALOG, lookup
from harness.zoo.fetch import ZooError, fetch, list_zoo, zoo_path
from harness.zoo.shipped import CARD, shipped_path

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser", "main"]


def add_parser(subparsers: Subparsers) -> None:
    """Add `zoo` to a command line. The chosen command is in `args.handler`, called with `args`, which gives the exit status."""
    zoo = subparsers.add_parser("zoo", help="small trained models: list, measure, train them")
    _add_commands(zoo)


def main(argv: list[str] | None = None) -> int:
    """`python -m harness.zoo`."""
    parser = argparse.ArgumentParser(prog="python -m harness.zoo", description="Small trained models.")
    _add_commands(parser)
    args = parser.parse_args(argv)
    handler: Callable[[argparse.Namespace], int] = args.handler
    return handler(args)


def _add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="zoo_command", required=True, metavar="{list,path,card,evaluate,train,fetch}")
    actions = {
        "list": (_list, "what the zoo has, and what it can fetch"),
        "path": (_path, "print the directory of a model, its hashes checked"),
        "card": (_card, "print a model's card: data, recipe, figures"),
        "evaluate": (_evaluate, "measure a target's accuracy or a drafter's acceptance anew"),
        "train": (_train, "train models as the zoo did; an interrupted training goes on"),
        "fetch": (_fetch, "download a model, convert it and print its directory"),
    }
    added = {}
    for name, (action, text) in actions.items():
        added[name] = command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the answer to FILE too")
        command.set_defaults(handler=_reporting_errors(action))
    for name in ("path", "card", "evaluate", "fetch"):
        added[name].add_argument("name", help="as in zoo:NAME")
    _add_evaluate(added["evaluate"])
    _add_train(added["train"])


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    command.add_argument("--n", type=int, default=1000, help="problems for a target (default: the whole fixed split, 1000)")
    command.add_argument("--seed", type=int, help="ask fresh problems of this seed instead of the fixed split")
    command.add_argument("--shots", type=int, default=0, help="worked examples before each problem")
    command.add_argument("--tokens", type=int, default=3, help="draft tokens for a drafter (default: 3)")


def _add_train(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="*", metavar="NAME", help="what to train; `lockstep zoo list` names it")
    command.add_argument("--all", action="store_true", help="everything, targets before their drafters (hours)")
    command.add_argument("--threads", type=int, default=1, help="threads; another number gives other bits (default: 1)")
    command.add_argument("--seed", type=int, help="another seed than the recipe's")
    command.add_argument("--weights", type=Path, metavar="DIR", help="begin at this checkpoint, not at random weights ...")
    command.add_argument("--at", type=int, metavar="STEP", help="... which stands for this step of the recipe")
    command.add_argument("--output", type=Path, help="where the checkpoints go (default: among those that come with Lockstep)")
    command.add_argument("--work", type=Path, help="where the states are kept (default: training/ in Lockstep's cache)")


def _reporting_errors(action: Callable[[argparse.Namespace], Any]) -> Callable[[argparse.Namespace], int]:
    def handler(args: argparse.Namespace) -> int:
        try:
            answer = action(args)
        except (CheckpointError, ZooError, ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if args.json is not None:
            args.json.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
        return 0

    return handler


def _list(args: argparse.Namespace) -> Any:
    answer: list[dict[str, Any]] = []
    for name, directory in shipped_zoo().items():
        size = sum(file.stat().st_size for file in directory.iterdir()) / 1e6
        print(f"zoo:{name}  {ABOUT[name].title if name in ABOUT else ''}  ({size:.1f} MB, comes with Lockstep)")
        answer.append({"name": name, "shipped": True, "megabytes": round(size, 2)})
    for name in sorted(ABOUT.keys() - shipped_zoo().keys()):
        print(f"zoo:{name}  {ABOUT[name].title}  (not here; make it: lockstep zoo train {name})")
        answer.append({"name": name, "shipped": False, "trainable": True})
    for entry, cached in list_zoo():
        state = "in the cache" if cached else f"not fetched ({entry.download_mb} MB to download, {entry.disk_mb} MB on disk)"
        print(f"zoo:{entry.name}  {entry.title}  [{entry.licence}]  {state}")
        answer.append({"name": entry.name, "title": entry.title, "licence": entry.licence, "shipped": False, "cached": cached})
    return answer


def _fetch(args: argparse.Namespace) -> Any:
    path = shipped_path(args.name) if args.name.removeprefix("zoo:") in shipped_zoo() else fetch(args.name)
    print(path)
    return {"name": args.name, "path": str(path)}


def _path(args: argparse.Namespace) -> Any:
    path = _find(args.name)
    print(path)
    return {"name": args.name, "path": str(path)}


def _find(name: str) -> Path:
    if name.removeprefix("zoo:") not in CATALOG:
        return shipped_path(name)
    path = zoo_path(name)
    if not path.exists():
        raise ZooError(f"{name} is not in the cache. Run: lockstep zoo fetch {path.name}")
    return path


def _card(args: argparse.Namespace) -> Any:
    path = _find(args.name)
    if not (path / CARD).exists():
        raise ZooError(f"{args.name} has no card here: it is {lookup(args.name).title}, by {lookup(args.name).source}")
    text = (path / CARD).read_text(encoding="utf-8")
    print(text)
    return {"name": args.name, "card": text}


def _evaluate(args: argparse.Namespace) -> Any:
    from harness.zoo.evaluate import acceptance_figures, accuracy_figures, chosen_problems, summary
    from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget
    from harness.zoo.training.registry import recipe_of

    path = shipped_path(args.name)
    recipe = recipe_of(args.name)
    if isinstance(recipe, DrafterRecipe):
        target = FrozenTarget(resolve_model(f"zoo:{recipe.target}"))
        figures = acceptance_figures(recipe, path, target, num_drafts=args.tokens)
    else:
        figures = accuracy_figures(str(path), chosen_problems(args.seed, args.n), num_shots=args.shots)
    print(summary(figures))
    return {"name": recipe.name, "figures": figures}


def _train(args: argparse.Namespace) -> Any:
    from harness.zoo.training.registry import recipe_of, recipes, train_model

    if args.all == bool(args.names):
        raise ZooError(f"name what to train, or say --all. The zoo trains: {', '.join(recipes())}")
    if args.threads < 1 or (args.seed is not None and args.seed < 0):
        raise ZooError("--threads is at least 1, --seed at least 0")
    if (args.weights is None) != (args.at is None) or (args.weights is not None and len(args.names) != 1):
        raise ZooError("--weights and --at go together, with one NAME")
    start = None if args.weights is None else (args.weights, args.at)
    names = list(recipes()) if args.all else [recipe_of(name).name for name in args.names]
    answer = []
    for name in names:
        path = train_model(
            name,
            args.output or SHIPPED_ZOO,
            args.work or cache_dir() / "training",
            threads=args.threads,
            seed=args.seed,
            start=start,
            say=lambda message: print(f"[zoo] {message}", file=sys.stderr, flush=True),
        )
        print(path)
        answer.append({"name": name, "path": str(path)})
    return answer
