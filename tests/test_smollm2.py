"""The real model: its import, its tokenizer, and the CPU engine's logits against transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks import logits
from llmc.runtime.tokenizer import IncrementalDecoder, Tokenizer

MESSAGES = [
    {"role": "system", "content": "Answer in French."},
    {"role": "user", "content": "What is 12 + 34? 日本語 🙂"},
]


@pytest.mark.slow
def test_greedy_in_float32_is_transformers_own(smollm2: Path, tmp_path: Path) -> None:
    result, _ = logits.measure(smollm2, "float32", tmp_path, num_prompts=64, num_tokens=32)
    # The rest are ties within the rounding of float32 sums, taken in another order.
    assert result.num_prompts == 64 and result.num_equal >= 60
    assert result.max_diff < 1e-3 * result.spread
    assert result.mean_diff < 1e-5 * result.spread


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "W8A16"])
def test_rounded_logits_stay_near_the_reference(
    smollm2: Path, tmp_path: Path, precision: str
) -> None:
    result, _ = logits.measure(smollm2, precision, tmp_path, num_prompts=16, num_tokens=16)
    # transformers' own bfloat16 is off by more (docs/benchmarks.md).
    assert result.mean_diff < 0.005 * result.spread
    assert result.max_diff < 0.1 * result.spread


def test_tokenizer_and_template_equal_transformers(smollm2: Path) -> None:
    ours, theirs = Tokenizer.open(smollm2), AutoTokenizer.from_pretrained(smollm2)
    want = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    rendered = ours.apply_chat_template(MESSAGES)
    assert rendered == want
    ids = ours.encode(rendered, add_special_tokens=False)
    assert ids == theirs.encode(rendered, add_special_tokens=False)
    assert ours.end_ids == (2,) and ids.count(1) == 3
    decoder = IncrementalDecoder(ours)
    streamed = [*(decoder.push([token]) for token in ids), decoder.flush()]
    assert "".join(streamed) == theirs.decode(ids, skip_special_tokens=True)
    assert not any("\ufffd" in part for part in streamed)


@pytest.mark.slow
def test_import_knows_what_the_original_knows(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(out[0]) == "The capital of France is Paris"
