"""Provide chat templates in the styles of published models, and a tokenizer for them."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

TEMPLATES = {
    "llama3": """
{{- bos_token }}
{%- for m in messages %}
    {{- "<|head|>" + m["role"] + "<|/head|>\\n\\n" }}
    {{- m["content"] | trim + "<|eot|>" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|head|>assistant<|/head|>\\n\\n" }}
{%- endif %}
""",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
    "{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}{% else %}"
    "{% set rest = messages %}{% set system = '' %}{% endif %}{% for m in rest %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must take turns: user, assistant, user') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + (system if loop.first else '') }}"
    "{{ m['content'].strip() + ' [/INST]' }}{% else %}"
    "{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "chatml": "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "<|im_start|>system\nBe of use.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "qwen3": """
{%- set ns = namespace(last=messages|length - 1) %}
{%- for m in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if m.role == "user" and ns.last == messages|length - 1 %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set content = m.content %}
    {%- if m.role == "assistant" and "</think>" in content %}
        {%- set content = content.split("</think>")[-1].lstrip("\\n") %}
    {%- endif %}
    {{- "<|im_start|>" ~ m.role ~ "\\n" ~ content ~ "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\\n" }}
    {%- if thinking is defined and thinking is false %}
        {{- "<think>\\n\\n</think>\\n\\n" }}
    {%- endif %}
{%- endif %}
""",
    "smollm2": "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nA small model.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "mistral": "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}"
    "{{ m['content'] + eos_token }}{% else %}"
    "{{ raise_exception('only user and assistant are roles') }}{% endif %}{% endfor %}",
    "zephyr": """{% for m in messages %}
{% if m['role'] == 'user' %}
{{ '<|user|>\\n' + m['content'] + eos_token }}
{% elif m['role'] == 'system' %}
{{ '<|system|>\\n' + m['content'] + eos_token }}
{% elif m['role'] == 'assistant' %}
{{ '<|assistant|>\\n' + m['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
""",
    "phi3": "{% for m in messages %}{% if m['role'] in ['system', 'user', 'assistant'] %}"
    "{{ '<|' ~ m['role'] ~ '|>\n' ~ m['content'] ~ '<|end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "granite": """{%- if messages[0].role == 'system' %}
    {%- set system, rest = messages[0].content, messages[1:] %}
{%- else %}
    {%- set system, rest = "Today is " + strftime_now("%d %B %Y") + ".", messages %}
{%- endif %}
{{- '<|start|>system<|stop|>' + system + '<|end|>\\n' }}
{%- for m in rest %}
    {{- '<|start|>' + m.role + '<|stop|>' + m.content + '<|end|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start|>assistant' }}
        {%- if tools %}{{- tools | tojson(indent=4) }}{%- endif %}
        {{- '<|stop|>' }}
    {%- endif %}
{%- endfor %}""",
    "plain": "{% macro turn(name, text) %}{{ name | capitalize }}: {{ text }}\n{% endmacro %}"
    "{% for m in messages %}{% if m.content | length == 0 %}{% continue %}{% endif %}"
    "{{ turn(m.role, m.content) }}{% endfor %}{{ 'Assistant:' if add_generation_prompt }}",
}

SPECIAL_TOKENS = (
    *("<s>", "<pad>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|head|>", "<|/head|>"),
    *("<|eot|>", "<|user|>", "<|system|>", "<|assistant|>", "<|end|>", "<|start|>", "<|stop|>"),
)


def byte_tokenizer(
    *, adds_bos: bool = True, special_tokens: Sequence[str] = SPECIAL_TOKENS
) -> Tokenizer:
    """Return a tokenizer of special tokens, from id 0, and one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*special_tokens, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special_tokens])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
        )
    return tokenizer
