"""Writes a Llama of four million random weights that behaves in ways a test can rely on: `python tiny_model.py OUT`.

* One UTF-8 byte is one token (256 byte tokens, no merges), so lengths are known before anything runs.
* Free text holds only printable ASCII without `<`, so an answer sent back as history becomes the same tokens and the
  prefix cache can be checked to the token; it never ends by itself, so its length is `max_tokens`.
* A grammar (guided JSON, a forced tool call) still works: the other tokens score very low, not minus infinity.
* Weights are drawn wide, so that a wrong or stale KV cache shows in the text.

How free text is confined: the first residual channel is 1 in every embedding and no layer writes to it, so after the
last norm it is positive, and the output rows of all other tokens weigh it with -1e5.

It runs in the engines' Python, which has torch and transformers; Trimtab's own has neither.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SPECIAL = ("<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
HIDDEN, LAYERS, HEADS, KV_HEADS, MAX_POSITIONS = 256, 4, 4, 2, 16_384
WEIGHT_STD, NEVER = 0.2, -1e5

# One line a message; what a message holds besides text (tools offered, calls made, their results) is its JSON.
TEMPLATE = (
    "{{ '<s>' }}"
    "{% if tools %}{{ '<|system|>' + (tools | tojson) + '<|end|>' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + ('system' if message.role == 'developer' else message.role) + '|>' }}"
    "{% if message.content is string %}{{ message.content }}"
    "{% elif message.content %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def write(folder: Path, seed: int = 0) -> None:
    """Configuration, weights, tokenizer and chat template, as `vllm serve` wants them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    ids = _write_tokenizer(folder)
    torch.manual_seed(seed)
    size = -(-len(ids) // 64) * 64
    ends = {"bos_token_id": ids["<s>"], "eos_token_id": ids["</s>"], "pad_token_id": ids["<pad>"]}
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=HIDDEN,
            intermediate_size=4 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=HIDDEN // HEADS,
            max_position_embeddings=MAX_POSITIONS,
            initializer_range=WEIGHT_STD,
            tie_word_embeddings=False,
            **ends,
        )
    ).to(torch.bfloat16)
    spoken = [ids[_symbol(byte)] for byte in range(0x20, 0x7F) if byte != ord("<")]
    silent = [token for token in range(size) if token not in set(spoken)]
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0, :] = 0.0
            layer.mlp.down_proj.weight[0, :] = 0.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[silent, 0] = NEVER
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(ends) + "\n", encoding="utf-8")


def _write_tokenizer(folder: Path) -> dict[str, int]:
    """One token a byte and the special ones; gives the ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {token: at for at, token in enumerate((*SPECIAL, *symbols))}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )
    wrapped.save_pretrained(folder)
    return ids


def _symbol(byte: int) -> str:
    """How byte-level tokenizers write a printable ASCII byte: as itself, a space as Ġ."""
    return "\u0120" if byte == 0x20 else chr(byte)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
