"""The stand-ins keep the published statistics of the data sets that they stand for, within 15 % each."""

from collections.abc import Iterable

import numpy as np
import pytest

from emulator.standins import ALL_MIXES, SHAREGPT, STANDINS, WILDCHAT
from emulator.workload import Mix


def drawn(mix: Mix, count: int = 8000) -> dict[str, np.ndarray]:
    """Per later turn: whole prompt, context before it, new tokens. Per turn: answer. Per conversation: turns."""
    rng = np.random.default_rng(20)
    prompts, contexts, new, answers, turns = [], [], [], [], []
    for _ in range(count):
        plan = mix.draw(rng)
        turns.append(len(plan))
        context = 0
        for number, turn in enumerate(plan):
            answers.append(turn.output_tokens)
            if number:
                prompts.append(context + turn.new_tokens)
                contexts.append(context)
                new.append(turn.new_tokens)
            context += turn.new_tokens + turn.output_tokens
    columns = {"prompt": prompts, "context": contexts, "new": new, "answer": answers, "turns": turns}
    return {name: np.array(values) for name, values in columns.items()}


@pytest.fixture(scope="module")
def wildchat() -> dict[str, np.ndarray]:
    return drawn(WILDCHAT)


@pytest.fixture(scope="module")
def sharegpt() -> dict[str, np.ndarray]:
    return drawn(SHAREGPT)


def close(found: Iterable[float], wanted: Iterable[float]) -> bool:
    return list(found) == pytest.approx(list(wanted), rel=0.15)


def test_wildchat_has_the_prompts_answers_and_turns_of_the_papers_sample(wildchat):
    prompt = wildchat["prompt"]
    assert close((prompt.mean(), np.percentile(prompt, 90)), (2110, 4745))
    assert close((wildchat["answer"].mean(), wildchat["turns"].mean()), (342, 3.08))


def test_wildchat_is_near_what_the_paper_prints_too(wildchat):
    prompt = wildchat["prompt"]
    assert close((prompt.mean(), np.percentile(prompt, 90)), (2200, 5115))
    assert close((wildchat["answer"].mean(), wildchat["turns"].mean()), (357, 3.1))


def test_sharegpt_has_the_new_tokens_answers_context_and_turns_of_the_usual_split(sharegpt):
    new, answer, context = sharegpt["new"], sharegpt["answer"], sharegpt["context"]
    assert close((*np.percentile(new, (50, 90)), new.mean()), (16, 86, 44))
    assert close((*np.percentile(answer, (50, 90)), answer.mean()), (249, 523, 271))
    assert close(np.percentile(context, (50, 90)), (739, 1481))
    assert close((sharegpt["turns"].mean(),), (4.4,))
    assert context.max() <= 2048


def test_both_keep_multi_turn_conversations_only_as_the_paper_does(wildchat, sharegpt):
    assert wildchat["turns"].min() == 2
    assert (sharegpt["turns"] > 1).mean() > 0.99, "a first turn that fills the split is left alone"


def test_all_mixes_go_by_their_own_name():
    assert set(STANDINS) < set(ALL_MIXES)
    assert all(name == mix.name for name, mix in ALL_MIXES.items())
