from dataclasses import replace
from typing import Any

import pytest

from llmc.errors import ServeError
from llmc.runtime.admission import check_request
from llmc.runtime.request import Request, SamplingParams
from tests.runtime.paged_engine import LIMITS

GOOD = Request(prompt_ids=(1, 2, 3), max_tokens=4)


def check(request: Request, *, chunked: bool = True, tokenizer: bool = True) -> None:
    check_request(request, LIMITS, chunked_context=chunked, has_tokenizer=tokenizer)


def test_what_just_fits_is_accepted() -> None:
    check(GOOD)
    check(replace(GOOD, prompt_ids=(60,) * 64, max_tokens=32), chunked=True)
    check(replace(GOOD, prompt_ids=(60,) * 32, max_tokens=64), chunked=False)
    check(replace(GOOD, stop=("x",), bad_words=((1, 2),), end_ids=(0, 60), priority=1.0))
    sampling = SamplingParams(temperature=0.0, top_k=0, top_p=0.0, min_p=1.0, seed=2**64 - 1)
    check(replace(GOOD, sampling=sampling))
    # 16 tokens in the cache, the 17th is never fed back: 4 blocks of 4.
    limits = replace(LIMITS, num_blocks=4)
    request = replace(GOOD, max_tokens=14)
    check_request(request, limits, chunked_context=True, has_tokenizer=False)
    with pytest.raises(ServeError, match="18 tokens need 5 KV blocks of 4 tokens, the pool has 4"):
        check_request(
            replace(request, max_tokens=15), limits, chunked_context=True, has_tokenizer=False
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": ()}, "the prompt is empty, expected at least 1 token"),
        ({"max_tokens": 0}, "max_tokens 0, expected at least 1"),
        ({"max_tokens": -3}, "max_tokens -3, expected at least 1"),
        ({"prompt_ids": (1,) * 65}, "prompt of 65 tokens > max_input_len 64"),
        ({"max_tokens": 94}, "prompt 3 + max_tokens 94 = 97 tokens > max_seq_len 96"),
        ({"prompt_ids": (1, 61)}, "prompt token 61 is outside the vocabulary of 61"),
        ({"prompt_ids": (1, -1)}, "prompt token -1 is outside the vocabulary of 61"),
        ({"end_ids": (61,)}, "end id 61 is outside the vocabulary of 61"),
        ({"bad_words": ((1,), (2, 99))}, "bad_words token 99 is outside the vocabulary of 61"),
        ({"bad_words": ((),)}, "an empty entry in bad_words"),
        ({"stop": ("a", "")}, "an empty stop string"),
        ({"priority": 1.5}, "priority 1.5, expected 0 to 1"),
    ],
)
def test_refusals_name_value_and_limit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ServeError) as caught:
        check(replace(GOOD, **changes))
    assert caught.value.message == f"request refused: {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -0.1}, "temperature -0.1, expected 0 or more"),
        ({"temperature": float("nan")}, "temperature nan, expected 0 or more"),
        ({"temperature": float("inf")}, "temperature inf, expected 0 or more"),
        ({"top_k": -1}, "top_k -1, expected 0 or more"),
        ({"top_p": 1.1}, "top_p 1.1, expected 0 to 1"),
        ({"min_p": -0.5}, "min_p -0.5, expected 0 to 1"),
        ({"seed": -1}, "seed -1, expected 0 to 2^64 - 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty 0.0, expected more than 0"),
        ({"presence_penalty": float("nan")}, "presence_penalty nan, expected a finite number"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty inf, expected a finite number"),
        ({"min_tokens": -1}, "min_tokens -1, expected 0 or more"),
        ({"min_tokens": 5}, "min_tokens 5 > max_tokens 4"),
    ],
)
def test_sampling_parameters_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ServeError) as caught:
        check(replace(GOOD, sampling=SamplingParams(**changes)))
    assert caught.value.message == f"request refused: {message}"


def test_all_reasons_are_given_at_once() -> None:
    bad = replace(GOOD, prompt_ids=(99,) * 70, max_tokens=90, stop=("x",))
    with pytest.raises(ServeError) as caught:
        check(bad, chunked=False, tokenizer=False)
    for part in ("max_input_len", "70 + max_tokens 90 = 160", "max_num_tokens", "99", "tokenizer"):
        assert part in caught.value.message
