"""How many tokens a text has, before an engine says: bytes per token, learned per model from usage."""

from __future__ import annotations

START_RATIO = 4.0
ALPHA = 0.05
MAX_MODELS = 64


class TokenRatio:
    """A forgetting average of prompt bytes per prompt token, by model; bounded in models."""

    __slots__ = ("_ratios",)

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def tokens(self, model: str, size_bytes: int) -> int:
        """Estimated tokens of that many bytes, at least 1."""
        return max(1, round(size_bytes / self._ratios.get(model, START_RATIO)))

    def learn(self, model: str, size_bytes: int, tokens: int) -> None:
        """An engine counted `tokens` in a prompt of `size_bytes`."""
        if tokens < 16 or size_bytes < 1:
            return  # too short to say anything about a ratio
        ratio = min(16.0, max(0.5, size_bytes / tokens))
        known = self._ratios.get(model)
        if known is None and len(self._ratios) >= MAX_MODELS:
            return
        self._ratios[model] = ratio if known is None else known + ALPHA * (ratio - known)
