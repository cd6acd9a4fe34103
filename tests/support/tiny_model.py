"""Write a model for llama.cpp: a Markov chain over words as a GGUF file of one layer that adds nothing."""

from __future__ import annotations

import math
import random
import re
import struct
import sys
from pathlib import Path

OPEN, CLOSE = '<tool_call>\n{"name": "search", "arguments": {"query": "', '"}}\n</tool_call>'
BROKEN = "<tool_call>\n["  # begins no call that the server's grammar knows
ANSWERS = re.findall(r" \w+", " it was found in an old town by two of her friends who had lived there")
QUERIES = re.findall(r" \w+", " river mayor author capital bridge daughter university battle")
START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif %}
{{- 'Tools:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\nCall one:\\n<tool_call>\\n{"name": <name>, "arguments": <arguments>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_HEAD, _CONTEXT = 32, 1 << 16


def write_model(path: Path, *, calls: float = 1.0, broken: float = 0.0) -> None:
    """Write a model whose turns are answers, calls and half calls, by weights of which that of answers is 1.

    An embedding is 1 at the token's own place, the layer adds 0, and the output holds the log-probabilities of what
    follows each token.
    """
    tokens, types = _vocabulary()
    size = len(tokens) + len(tokens) % 2
    following = _chain(calls, broken)
    # A normalised embedding is the root of its size at its place.
    logits = [[math.log(following.get(said, {END: 1.0}).get(token, 1e-13)) for said in tokens] for token in tokens]
    chances = [[logit / math.sqrt(size) for logit in row] for row in logits]
    one_hot = [[float(said == token) for said in range(size)] for token in range(len(tokens))]
    ones, none = [1.0] * size, [0.0] * (size * _HEAD)
    tensors = [
        ("token_embd", (size, len(tokens)), [one for row in one_hot for one in row]),
        ("output", (size, len(tokens)), [one for row in chances for one in (*row, *[0.0] * (size - len(row)))]),
        *((name, (size,), ones) for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")),
        *((f"blk.0.{name}", (size, _HEAD), none) for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")),
        *((f"blk.0.{name}", (_HEAD, size), none) for name in ("attn_output", "ffn_down")),
    ]
    settings = [
        _text("general.architecture", "llama"),
        _number("llama.block_count", 1),
        _number("llama.context_length", _CONTEXT),
        _number("llama.embedding_length", size),
        _number("llama.feed_forward_length", _HEAD),
        _number("llama.attention.head_count", 1),
        _number("llama.attention.key_length", _HEAD),
        _number("llama.attention.value_length", _HEAD),
        _number("llama.rope.dimension_count", _HEAD),
        _string("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", _F32, 1e-12),
        _text("tokenizer.ggml.model", "gpt2"),
        _text("tokenizer.ggml.pre", "gpt-2"),
        _array("tokenizer.ggml.tokens", _STRING, [_string(token) for token in tokens]),
        _array("tokenizer.ggml.token_type", _I32, [struct.pack("<i", kind) for kind in types]),
        _array("tokenizer.ggml.merges", _STRING, [_string("Ġ Ġ")]),
        _number("tokenizer.ggml.eos_token_id", tokens.index(END)),
        _string("tokenizer.ggml.add_bos_token") + struct.pack("<I?", _BOOL, False),
        _text("tokenizer.chat_template", TEMPLATE),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings)) + b"".join(settings)
    data = b""
    for name, shape, numbers in tensors:
        head += _string(f"{name}.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += _padded(struct.pack(f"<{len(numbers)}f", *numbers))
    path.write_bytes(_padded(head) + data)


def _vocabulary() -> tuple[list[str], list[int]]:
    """Bytes by their printable stand-ins, then words and marks, which are found in a text before its bytes are."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    plain = [*map(chr, shown), *(chr(256 + place) for place in range(256 - len(shown))), "ĠĠ"]
    words = [*ANSWERS, *QUERIES, OPEN, CLOSE, BROKEN]
    return [*plain, *words, START, END], [_NORMAL] * len(plain) + [_USER_DEFINED] * len(words) + [_CONTROL] * 2


def _chain(calls: float, broken: float) -> dict[str, dict[str, float]]:
    """Chances of the tokens that may follow each token; a turn begins behind a line feed."""
    rng = random.Random(0)
    words = {
        word: {other: rng.random() for other in some} | {end: len(some) / 12}
        for some, end in ((ANSWERS, END), (QUERIES, CLOSE))
        for word in some
    }
    begun = {ANSWERS[0]: 0.5, ANSWERS[1]: 0.5, OPEN: calls, BROKEN: broken}
    begun = {token: weight for token, weight in begun.items() if weight}
    return words | {"Ċ": begun, OPEN: dict.fromkeys(QUERIES, 1.0)}


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _text(name: str, value: str) -> bytes:
    return _string(name) + struct.pack("<I", _STRING) + _string(value)


def _number(name: str, value: int) -> bytes:
    return _string(name) + struct.pack("<II", _U32, value)


def _array(name: str, kind: int, items: list[bytes]) -> bytes:
    return _string(name) + struct.pack("<IIQ", _ARRAY, kind, len(items)) + b"".join(items)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
