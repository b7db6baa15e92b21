"""What one answer will say, known before the engine has made its first token.

The text is drawn from the prompt's voice (`tokens.py`), so its end is known too: max_tokens, the natural length, or
the token that completes a stop string. While a stop string may still begin, vLLM's stream holds that many
characters back; `pieces` does too. A tool call is the text `name(arguments)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .tokens import BYTES_PER_TOKEN, count, draw, natural_tokens, tool_arguments


@dataclass(frozen=True, slots=True)
class Script:
    """One answer. `text` is what the client reads: content, or the arguments of a call of `tool`."""

    voice: str
    tokens: int
    text: str
    finish: str
    stop_reason: str | None = None
    held_back: int = 0
    """Characters that the stream keeps until the end is known."""
    tool: str | None = None
    skipped: int = 0
    """Characters that the model makes before the first of `text`: the name of a tool, and a bracket."""
    words: bool = True
    """Made of words of four letters each, which stand in JSON as they are."""

    def pieces(self) -> list[str | None]:
        """What each token adds to the stream; None: nothing that a client would see yet."""
        made: list[str | None] = []
        shown = 0
        for token in range(1, self.tokens + 1):
            made_chars = token * BYTES_PER_TOKEN - self.skipped
            if made_chars < 0:
                made.append(None)
                continue
            upto = len(self.text) if token == self.tokens else max(shown, made_chars - self.held_back)
            made.append(self.text[shown:upto])
            shown = min(upto, len(self.text))
        return made

    def garbled(self) -> Script:
        """The same length of something else: what comes of KV that is not the prompt's."""
        voice = f"{self.voice} garbled"
        return Script(voice, self.tokens, draw(voice, self.tokens), self.finish, self.stop_reason)


def write(
    voice: str,
    max_tokens: int | None,
    room: int,
    *,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    stop: Sequence[str] = (),
    include_stop: bool = False,
) -> Script:
    """An answer of text; `room` is what the context leaves for it."""
    if max_tokens is not None or ignore_eos:
        tokens, finish = min(room, max_tokens or room), "length"
    else:
        tokens, finish = max(natural_tokens(voice), min_tokens), "stop"
        if tokens > room:
            tokens, finish = room, "length"
    text = draw(voice, tokens)
    ends = []
    for order, string in enumerate(stop):
        # As vLLM: not before min_tokens are out, and then only where new text takes part.
        begin = text.find(string, max(0, min_tokens * BYTES_PER_TOKEN - len(string) + 1))
        if begin >= 0:
            ends.append((-(-(begin + len(string)) // BYTES_PER_TOKEN), order, begin, string))
    held_back = 0 if include_stop else max((len(string) - 1 for string in stop), default=0)
    if not ends:
        return Script(voice, tokens, text, finish, None, held_back)
    tokens, _, begin, string = min(ends)
    text = text[: begin + len(string)] if include_stop else text[:begin]
    return Script(voice, tokens, text, "stop", string, held_back)


def structured(voice: str, text: str, max_tokens: int | None, room: int) -> Script:
    """An answer that a schema or a choice dictates: it stops by itself, unless the limit comes first."""
    whole = count(text)
    tokens = min(whole, room, whole if max_tokens is None else max_tokens)
    if tokens < whole:
        cut = text.encode()[: tokens * BYTES_PER_TOKEN].decode(errors="ignore")
        return Script(voice, tokens, cut, "length", words=False)
    return Script(voice, tokens, text, "stop", words=False)


def tool_script(voice: str, tool: Mapping[str, object], max_tokens: int | None, room: int, named: bool) -> Script:
    """An answer that calls a tool; a named one ends with "stop", a required one with "tool_calls", as in vLLM."""
    name = str(tool.get("name"))
    arguments = tool_arguments(voice, tool)
    whole = count(f"{name}({arguments})")
    tokens = min(whole, room, whole if max_tokens is None else max_tokens)
    skipped = len(name) + 1
    if tokens < whole:
        made = tokens * BYTES_PER_TOKEN - skipped
        return Script(voice, tokens, arguments[: max(0, made)], "length", None, 0, name if made >= 0 else None, skipped)
    return Script(voice, tokens, arguments, "stop" if named else "tool_calls", None, 0, name, skipped)
