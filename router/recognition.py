"""Recognising conversations: by the id that a client sends, or by the chain of its messages.

The chain is a keyed hash over the messages so far (the key is the installation's, so nobody can probe for
other people's prompts). After a turn the chain of its request is remembered; a later request that starts with
the same messages and goes on with an answer is the conversation's next turn. So a retry gets the number it
had before, an edited answer is still recognised, and identical openers stay two conversations: a request
without an answer in it always begins a new one. Where several conversations share a history, the one with the
same answer and no turn further on is meant. Where it is not clear who is meant, a new one begins: two clients never
share a conversation.

`md5_first_message` is the paper's rule (B.3): one conversation per first user message and tenant.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from .body import Message
from .turn import ConversationKey

MAX_TWINS = 64
"""Conversations with one and the same history that are told apart."""


class Recognition(StrEnum):
    """How a conversation without an id is recognised."""

    CHAIN = "chain"
    MD5_FIRST_MESSAGE = "md5_first_message"


@dataclass(frozen=True, slots=True)
class Recognised:
    """Which conversation, which turn (None: the one after the last answered), and what to remember it by."""

    key: ConversationKey
    number: int | None
    chain: bytes
    new_bytes: int
    """Size of the messages since the last answer."""
    total_bytes: int


@dataclass(slots=True)
class _Entry:
    key: ConversationKey
    number: int
    answer: bytes | None
    advanced: bytes | None = None
    """Chain of the last request that went on from here."""


@dataclass(slots=True)
class Recogniser:
    """Bounded by `limit` remembered turns, least recently used first."""

    secret: bytes
    rule: Recognition = Recognition.CHAIN
    limit: int = 200_000
    _chains: OrderedDict[bytes, list[_Entry]] = field(default_factory=OrderedDict)
    _entries: int = 0
    _last: OrderedDict[ConversationKey, tuple[bytes, int]] = field(default_factory=OrderedDict)

    def recognise(
        self, tenant: str, model: str, given_id: str | None, messages: Sequence[Message], request_id: str
    ) -> Recognised:
        """Find the conversation of a chat request. Without messages only a given id can tell."""
        answers = [at for at, message in enumerate(messages) if message.role == "assistant"]
        last_answer = answers[-1] if answers else -1
        total = sum(message.size_bytes for message in messages)
        fresh = sum(message.size_bytes for message in messages[last_answer + 1 :])
        chains = self._prefixes(tenant, model, messages)
        whole = chains[-1]
        if given_id is not None:
            key = ConversationKey(tenant, model, f"id:{given_id}")
            return Recognised(key, self._number_by_id(key, whole, messages, len(_turns(messages))), whole, fresh, total)
        if self.rule is Recognition.MD5_FIRST_MESSAGE and messages:
            first = next((m for m in messages if m.role == "user"), messages[0])
            key = ConversationKey(
                tenant, model, "md5:" + hashlib.md5(first.canonical, usedforsecurity=False).hexdigest()
            )
            return Recognised(key, None, whole, fresh, total)
        for boundary in reversed(_turns(messages)):
            entry = self._entry(chains[boundary], self._answer(messages[boundary]), whole)
            if entry is not None:
                entry.advanced = whole
                later = sum(1 for at in _turns(messages) if at > boundary)
                return Recognised(entry.key, entry.number + 1 + later, whole, fresh, total)
        key = ConversationKey(tenant, model, f"new:{request_id}")
        return Recognised(key, len(_turns(messages)) + 1, whole, fresh, total)

    def answered(self, found: Recognised, number: int, answer: bytes | None) -> None:
        """A turn was answered: remember its history, and the answer's canonical bytes where they are known."""
        self._last[found.key] = (found.chain, number)
        self._last.move_to_end(found.key)
        if len(self._last) > self.limit:
            self._last.popitem(last=False)
        digest = None if answer is None else self._digest(b"answer", answer)
        entries = self._chains.setdefault(found.chain, [])
        self._chains.move_to_end(found.chain)
        for entry in entries:
            if entry.key == found.key:
                entry.answer, entry.number = digest, number
                return
        entries.append(_Entry(found.key, number, digest))
        self._entries += 1
        if len(entries) > MAX_TWINS:
            del entries[0]
            self._entries -= 1
        while self._entries > self.limit:
            self._entries -= len(self._chains.popitem(last=False)[1])

    def _number_by_id(
        self, key: ConversationKey, chain: bytes, messages: Sequence[Message], answers: int
    ) -> int | None:
        known = self._last.get(key)
        if known is None:
            return answers + 1 if messages else None
        return known[1] if messages and known[0] == chain else None

    def _entry(self, chain: bytes, answer: bytes, whole: bytes) -> _Entry | None:
        """Who goes on from that chain with that answer: one who has not yet; else one whose request this was before;
        else the only one there is."""
        entries = self._chains.get(chain, [])
        fitting = [e for e in entries if e.answer == answer] or [e for e in entries if e.answer is None]
        waiting = [e for e in fitting or entries if e.advanced is None]
        if waiting and (fitting or len(waiting) == 1):
            return waiting[0]
        fitting = fitting or entries
        again = next((e for e in fitting if e.advanced == whole), None)
        return again or (fitting[0] if len(fitting) == 1 else None)

    def _prefixes(self, tenant: str, model: str, messages: Sequence[Message]) -> list[bytes]:
        """The chain before each message, and after the last."""
        chain = self._digest(b"start", f"{tenant}\0{model}".encode())
        chains = [chain]
        for message in messages:
            chain = self._digest(chain, message.canonical)
            chains.append(chain)
        return chains

    def _answer(self, message: Message) -> bytes:
        return self._digest(b"answer", message.canonical)

    def _digest(self, chain: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(chain + data, key=self.secret[:64], digest_size=16).digest()


def _turns(messages: Sequence[Message]) -> list[int]:
    """Where an answer follows something that is none: the ends of earlier turns."""
    return [
        at
        for at, message in enumerate(messages)
        if message.role == "assistant" and at > 0 and messages[at - 1].role != "assistant"
    ]


def tenant_of(secret: bytes, caller: str | None) -> str:
    """A name for a caller (an API key, or the name of one), that does not give the key away."""
    if not caller:
        return ""
    return hmac.new(secret, caller.encode(), "sha256").hexdigest()[:16]
