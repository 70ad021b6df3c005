"""What the words on a page mean."""

from __future__ import annotations

__all__ = ["DEFINITIONS"]

DEFINITIONS = (
    ("case", "One parametrized test."),
    ("compared request", "One request whose token ids, text, finish and stop reason were compared between two runs, exactly."),
    (
        "known defect",
        "A failure that is expected and excused by name, for one kind of exception only. If it passes, the case fails.",
    ),
    ("overlapped step", "A step that was submitted while another one was in flight."),
    ("draft", "One proposal round of one request with at least one proposed token that the verifier saw."),
    ("drafted tokens", "Proposed tokens that the verifier saw, without padding."),
    ("accepted", "Drafted tokens that were accepted and emitted; tokens behind a stop do not count."),
    ("acceptance rate", "accepted / drafted tokens. Not defined without drafts."),
    ("acceptance length", "1 + accepted / drafts: the bonus token is included. 1 without drafts."),
    ("per-position rate", "accepted at a position / drafts."),
    ("conservation", "emitted tokens = prefill tokens + Σ over steps (1 + accepted)."),
)
