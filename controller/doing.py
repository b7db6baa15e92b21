"""What the controller is doing about an SLO, in words that end an alert's sentence."""

from __future__ import annotations

from slos.objective import Slo

from .laws.protocol import Action
from .tick import Outputs

_WORDS = {
    Action.PROTECT_TPOT: "sends more turns through prefill nodes to spare the decode nodes",
    Action.PROTECT_TTFT: "keeps more turns on their decode nodes to spare the prefill nodes",
    Action.RETURN: "goes back towards the price that was right before",
    Action.SAVE: "keeps more turns on their decode nodes to save transfers",
    Action.HOLD: "holds its price",
    Action.NO_EVIDENCE: "waits for more samples",
}


def doing(slo: Slo, outputs: Outputs) -> str:
    """One clause for the models that the SLO covers."""
    covered = {name: output for name, output in outputs.models.items() if slo.match.covers_model(name)}
    if not covered:
        return "the controller has seen no turn of its models yet"
    clauses = []
    for name, output in covered.items():
        clause = f"{_WORDS[output.action]} (p = {output.price:.3g})"
        if output.feasibility.relief is not None:
            clause += f", which is not enough: {output.feasibility.relief.value}"
        clauses.append(clause if len(covered) == 1 else f"{clause} for {name}")
    return "the controller " + ", ".join(clauses)
