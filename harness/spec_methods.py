"""Every speculative method on the drafter that the zoo has for it: what the suites run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.drafters.registry import method_info

__all__ = ["METHODS", "SpecMethod"]


@dataclass(frozen=True)
class SpecMethod:
    """`config` is `speculative_config` without its depth. `max_depth`: the most drafts that it can make."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    target: str = "zoo:tiny"
    max_depth: int = 16
    history: bool = False  # what it proposes depends on what ran before

    @property
    def supports_async(self) -> bool:
        return method_info(str(self.config["method"])).supports_async_scheduling

    @property
    def has_distribution(self) -> bool:
        from engine.drafters.registry import drafter_class

        return drafter_class(str(self.config["method"])).has_distribution

    def speculative_config(self, num_speculative_tokens: int, **more: Any) -> dict[str, Any]:
        return {**self.config, "num_speculative_tokens": num_speculative_tokens, **more}


def _on_zoo(name: str, method: str, drafter: str, **more: Any) -> SpecMethod:
    options = {key: value for key, value in more.items() if key != "max_depth"}
    return SpecMethod(name, {"method": method, "model": f"zoo:{drafter}", **options}, max_depth=more.get("max_depth", 16))


_LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
_ALL = (
    SpecMethod("ngram", {"method": "ngram", **_LOOKUP}),
    SpecMethod("ngram_gpu", {"method": "ngram_gpu", **_LOOKUP}),
    SpecMethod("suffix", {"method": "suffix"}, history=True),
    _on_zoo("draft_model", "draft_model", "tiny-draft"),
    _on_zoo("draft_model_small", "draft_model", "tiny-draft-small"),
    _on_zoo("pard", "draft_model", "tiny-pard", parallel_drafting=True),
    _on_zoo("eagle", "eagle", "tiny-eagle"),
    _on_zoo("eagle3", "eagle3", "tiny-eagle3"),
    SpecMethod("mtp", {"method": "mtp"}, target="zoo:tiny-mtp"),
    _on_zoo("medusa", "medusa", "tiny-medusa", max_depth=3),
    _on_zoo("dflash", "dflash", "tiny-dflash", max_depth=7),
    _on_zoo("dspark", "dspark", "tiny-dspark", max_depth=7),
)
METHODS: dict[str, SpecMethod] = {method.name: method for method in _ALL}
