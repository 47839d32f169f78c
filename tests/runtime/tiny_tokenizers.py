"""Small tokenizers of every kind language models have, made here, saved as a model has them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and 1234 other dogs sleep on.",
    "naïve café — “quotes”, €5, 日本語のテキスト, emoji 🙂👩‍👩‍👧, tabs\tand\n\nnewlines  double",
] * 4
SPECIAL = ["<s>", "</s>", "<|im_start|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'bad' %}"
    "{{ raise_exception('role bad is not known') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    """GPT-2's kind: bytes as printable characters."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_tokens([AddedToken("<tool>", special=False)])
    return made


def byte_fallback(*, metaspace: bool = False) -> Tokenizer:
    """SentencePiece's kind, as Llama 2 (or, with `metaspace`, older conversions) has it."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=80, show_progress=False)
    trained.train_from_iterator([CORPUS[0]], trainer)
    state = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    ordered = sorted(state["vocab"].items(), key=lambda item: item[1])
    tokens += [token for token, _ in ordered if token not in tokens]
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge) for merge in state["merges"]]
    made = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    if metaspace:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        made.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
        )
    else:
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        made.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    made.add_special_tokens([AddedToken(token, special=True) for token in ["<unk>", *SPECIAL]])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    return made


def gemma() -> Tokenizer:
    """SentencePiece's kind that neither adds nor strips a leading space."""
    made = byte_fallback()
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


def unigram(*, byte_fallback: bool = False) -> Tokenizer:
    """A unigram language model over pieces, with unknown characters or with bytes for them."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", special_tokens=["<unk>", *SPECIAL], show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    pieces = [tuple(piece) for piece in json.loads(trained.to_str())["model"]["vocab"]]
    parts: list[Any] = [decoders.Metaspace()]
    if byte_fallback:
        pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        parts.append(decoders.Strip(" ", 1, 0))
    made = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=byte_fallback))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(parts)
    made.add_special_tokens([AddedToken(token, special=True) for token in ["<unk>", *SPECIAL]])
    return made


def with_added(made: Tokenizer) -> Tokenizer:
    """Add what fine-tuned models add after the vocabulary, each spelled as nastily as may be."""
    made.add_tokens(
        [
            AddedToken("café", normalized=False),
            AddedToken(" spaced out ", normalized=False),
            AddedToken("👩‍👩‍👧", normalized=False),
            AddedToken("<|x▁y|>", normalized=False, lstrip=True, rstrip=True),
            AddedToken("word", single_word=True),
        ]
    )
    made.add_special_tokens([AddedToken("<｜tool▁call｜>", special=True), "é"])
    return made


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "byte_level_added": lambda: with_added(byte_level()),
    "byte_fallback": byte_fallback,
    "byte_fallback_added": lambda: with_added(byte_fallback()),
    "metaspace": lambda: byte_fallback(metaspace=True),
    "gemma": gemma,
    "unigram": unigram,
    "unigram_bytes": lambda: unigram(byte_fallback=True),
    "unigram_added": lambda: with_added(unigram()),
}


def save(tokenizer: Tokenizer, directory: Path, **config: Any) -> Path:
    """Write tokenizer.json and tokenizer_config.json (BOS, EOS, a chat template and `config`)."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    } | config
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
