"""Chat templates in the manner of well-known models, written for tests, and a tokenizer that fits each."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- '# Tools\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}{% generation %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif not loop.first or message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA = """\
{{- bos_token }}
{%- for message in messages %}
{%- set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + message.content | trim }}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

MISTRAL = """\
{{- bos_token }}
{%- set ns = namespace(expected='user', calls=0) %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if ns.calls == 0 %}{{ raise_exception('a tool message needs a call before it') }}{% endif %}
{%- if message.tool_call_id | length != 9 %}{{ raise_exception('a call id has nine characters') }}{% endif %}
{{- '[TOOL_RESULTS] ' + message.content + '[/TOOL_RESULTS]' }}
{%- elif message.tool_calls %}
{%- set ns.calls = message.tool_calls | length %}
{{- '[TOOL_CALLS] ' }}
{%- for call in message.tool_calls %}{{ (call.function | tojson) }}{% if not loop.last %}, {% endif %}{% endfor %}
{{- eos_token }}
{%- else %}
{%- if message.role != ns.expected and ns.calls == 0 %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if message.role == 'user' %}{{ '[INST] ' + message.content + '[/INST]' }}{% set ns.expected = 'assistant' %}
{%- else %}{{ message.content + eos_token }}{% set ns.expected = 'user' %}{% set ns.calls = 0 %}{% endif %}
{%- endif %}
{%- endfor %}"""

SPECIAL = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama": ("<|begin|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    "mistral": ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
}
ENDS = {"chatml": "<|im_end|>", "llama": "<|eot_id|>", "mistral": "</s>"}
SOURCES = {"chatml": CHATML, "llama": LLAMA, "mistral": MISTRAL}
_BEGINS = {"llama": "<|begin|>", "mistral": "<s>"}

_TEXT = [
    "assistant user system tool what is the capital of France? the capital is Paris, and the answer is 42.",
    "trunk answer {}: the search found nothing about the library and the capital of Benin is Porto-Novo",
    '{"name": "search", "arguments": {"query": "the capital"}}',
]


def tokenizer(name: str) -> Tokenizer:
    """A small byte-level BPE with a template's special tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(_TEXT * 4, trainer)
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL[name]])
    return made


def write(name: str, folder: Path) -> Path:
    """Write a tokenizer with its template as models have them, and return the folder."""
    tokenizer(name).save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": ENDS[name]}, "bos_token": _BEGINS.get(name), "chat_template": SOURCES[name]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
