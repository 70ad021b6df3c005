"""Every speculative method by name: whether asynchronous scheduling supports it, and the drafter class that runs it.

The names are vLLM's. A plugin adds its own with `register_drafter`. A method without a class is known to the configuration
rules but not built here; asking for it is an error that says so.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import nearest_hint

if TYPE_CHECKING:
    from engine.drafters.base import Drafter

__all__ = [
    "MethodInfo",
    "canonical_method",
    "custom_drafter_class",
    "drafter_class",
    "known_methods",
    "method_info",
    "register_drafter",
]


@dataclass(frozen=True)
class MethodInfo:
    name: str
    supports_async_scheduling: bool
    drafter: str | None = None
    """`"module:Class"`, imported when an engine is built; None: not built."""


MTP_DRAFTER = "engine.drafters.mtp:MtpDrafter"
_METHODS = {
    info.name: info
    for info in (
        MethodInfo("eagle", True, "engine.drafters.eagle:EagleDrafter"),
        MethodInfo("eagle3", True, "engine.drafters.eagle:Eagle3Drafter"),
        MethodInfo("mtp", True, MTP_DRAFTER),
        MethodInfo("draft_model", True, "engine.drafters.draft_model:DraftModelDrafter"),
        MethodInfo("ngram_gpu", True, "engine.drafters.ngram:NgramDrafter"),
        MethodInfo("dflash", True, "engine.drafters.block:DFlashDrafter"),
        MethodInfo("dspark", True, "engine.drafters.block:DSparkDrafter"),
        MethodInfo("ngram", False, "engine.drafters.ngram:NgramDrafter"),
        MethodInfo("medusa", False, "engine.drafters.medusa:MedusaDrafter"),
        MethodInfo("mlp_speculator", False),
        MethodInfo("suffix", False, "engine.drafters.suffix:SuffixDrafter"),
        MethodInfo("custom_class", False),  # the class is named by the user: `custom_drafter_class`
    )
}

# Names that the field uses for an MTP module of one model family; each means "mtp".
_MTP_ALIASES = (
    "deepseek_mtp",
    "ernie_mtp",
    "exaone_moe_mtp",
    "glm4_moe_mtp",
    "longcat_flash_mtp",
    "mimo_mtp",
    "nemotron_h_mtp",
    "pangu_ultra_moe_mtp",
    "qwen3_next_mtp",
)
_METHODS.update({alias: MethodInfo(alias, True, MTP_DRAFTER) for alias in _MTP_ALIASES})


def register_drafter(name: str, drafter: str, *, supports_async_scheduling: bool) -> None:
    """Add a method of a plugin; `drafter` is `"module:Class"`. The same again is fine, another class is a `ValueError`.

    `supports_async_scheduling` promises that the drafts are made by the runner from its own token table, so that the next step
    never waits for the host.
    """
    info = MethodInfo(name, supports_async_scheduling, drafter)
    if _METHODS.setdefault(name, info) != info:
        raise ValueError(f"speculative method {name!r} is already registered as {_METHODS[name]}.")


def known_methods() -> tuple[str, ...]:
    return tuple(_METHODS)


def method_info(name: str) -> MethodInfo:
    """Raises `ValueError` naming the nearest method."""
    if name not in _METHODS:
        raise ValueError(f"unknown speculative method {name!r}.{nearest_hint(name, _METHODS)}")
    return _METHODS[name]


def canonical_method(name: str) -> str:
    """The method that an alias stands for; warns of an alias."""
    if name not in _MTP_ALIASES:
        return method_info(name).name
    warnings.warn(f"speculative method {name!r} is deprecated; write 'mtp'", DeprecationWarning, stacklevel=3)
    return "mtp"


def drafter_class(name: str) -> type[Drafter]:
    """Import the drafter of a method; `ValueError` for one that is not built here."""
    info = method_info(name)
    if info.drafter is None:
        built = ", ".join(sorted(m.name for m in _METHODS.values() if m.drafter))
        raise ValueError(f"speculative method {name!r} is not built in this version; use one of: {built}.")
    module, _, attribute = info.drafter.partition(":")
    return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]


def custom_drafter_class(path: object) -> type[Drafter]:
    """A user's own class, from the dotted path that `speculative_config` names as its model; `ValueError` if it is none."""
    from engine.drafters.base import Drafter

    module, _, attribute = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    if not module:
        raise ValueError(
            f"method 'custom_class' needs the drafter's class as its model, such as 'my_module.MyDrafter', got {path!r}."
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the drafter {path!r} cannot be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Drafter)):
        raise ValueError(f"{path!r} is no subclass of engine.drafters.base.Drafter.")
    return found
