"""Real vLLM 0.32 against its record: the face has not changed, and differs from the emulator as documented.

Asks the engines of the fixture `engines`, or any others: `TRIMTAB_FACE="P_URL D_URL [RECOMPUTE_D_URL]"`. Takes some two
minutes, half of it for a lease to end.
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.conformance_face import documented
from tests.conformance_face.emulated import emulated_sheet
from tests.conformance_face.sheet import Sheet, ask, differences, load

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def urls(request: pytest.FixtureRequest) -> list[str]:
    """P, D, and a D of the recompute policy if there is one."""
    told = os.environ.get("TRIMTAB_FACE", "").split()
    if told:
        return told
    try:
        engines = request.getfixturevalue("engines")
    except pytest.FixtureLookupError:
        pytest.skip("no engines: name a P and a D in TRIMTAB_FACE")
    return [engines["P0"].url, engines["D0"].url]


@pytest.fixture(scope="module")
def real(urls: list[str]) -> Sheet:
    recompute = (urls[0], urls[2]) if len(urls) > 2 else None
    return asyncio.run(ask(urls[0], urls[1], recompute=recompute, nonce=random.SystemRandom().randrange(10**6)))


def test_vllm_answers_as_it_is_recorded(real: Sheet):
    recorded = {name: answer for name, answer in load(documented.VLLM).items() if name in real}
    assert recorded.keys() == real.keys()
    assert differences(recorded, real) == []


def test_the_emulator_differs_from_these_engines_as_documented(real: Sheet):
    emulated = asyncio.run(emulated_sheet(nonce=random.SystemRandom().randrange(10**6)))
    asked = {name: answer for name, answer in emulated.items() if name in real or "emulator_" in name}
    assert differences(real, asked) == documented.load()
