from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmc.errors import ServeError
from llmc.model_repo import signatures
from llmc.runtime.request import Response, SamplingParams
from llmc.runtime.session import Session
from llmc.runtime.tokenizer import Tokenizer
from llmc.runtime.triton_request import (
    NEUTRAL,
    READ,
    WITHOUT_MEANING,
    RequestDefaults,
    make_word_lists,
    read_request,
    response_tensors,
)

DEFAULTS = RequestDefaults(exclude_input=False, decoupled=True)
WORDS = {1: "<s>", 2: "</s>", 3: "stop", 4: " it"}


class Words:
    """A tokenizer of four words, of which 1 and 2 are special."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(WORDS[i] for i in ids if i > 2 or not skip_special_tokens)


SESSION = cast(Session, SimpleNamespace(end_ids=(2, 7), tokenizer=cast(Tokenizer, Words())))


def tensors(**values: Any) -> dict[str, npt.NDArray[Any]]:
    arrays = {"input_ids": [[5, 6, 7, 0]], "input_lengths": [3], "request_output_len": [9]}
    return {name: np.asarray(value) for name, value in (arrays | values).items()}


def read(row: int = 0, defaults: RequestDefaults = DEFAULTS, **values: Any) -> Any:
    return read_request(tensors(**values), row, defaults=defaults, session=SESSION)


def test_every_input_of_the_model_has_exactly_one_meaning() -> None:
    names = [tensor.name for tensor in signatures.TENSORRT_LLM_INPUTS]
    assert sorted([*READ, *NEUTRAL, *WITHOUT_MEANING]) == sorted(names)


def test_a_bare_request_takes_the_models_defaults() -> None:
    request = read()
    assert request.prompt_ids == (5, 6, 7), "cut at input_lengths"
    assert (request.max_tokens, request.end_ids) == (9, (2, 7))
    assert request.sampling == SamplingParams() and request.sampling.greedy
    assert not (request.streaming or request.return_log_probs or request.exclude_input)


def test_every_sampling_input_arrives() -> None:
    request = read(
        temperature=[0.5],
        runtime_top_k=[[4]],
        runtime_top_p=[0.25],
        runtime_min_p=[0.125],
        seed=np.array([2**64 - 1], np.uint64),
        repetition_penalty=[1.5],
        presence_penalty=[0.75],
        frequency_penalty=[-0.5],
        min_tokens=[2],
        return_log_probs=[True],
    )
    assert request.sampling == SamplingParams(
        temperature=0.5,
        top_k=4,
        top_p=0.25,
        min_p=0.125,
        seed=2**64 - 1,
        repetition_penalty=1.5,
        presence_penalty=0.75,
        frequency_penalty=-0.5,
        min_tokens=2,
    )
    assert request.return_log_probs


def test_end_id_replaces_the_models_and_minus_one_means_none() -> None:
    assert read(end_id=[3]).end_ids == (3,)
    assert read(end_id=[-1]).end_ids == ()


def test_a_stream_never_repeats_the_prompt() -> None:
    assert not read(exclude_input_in_output=[False]).exclude_input
    assert read(exclude_input_in_output=[True]).exclude_input
    assert read(streaming=[True], exclude_input_in_output=[False]).exclude_input
    with pytest.raises(ServeError, match="streaming: true"):
        read(streaming=[True], defaults=RequestDefaults(exclude_input=True, decoupled=False))


def test_stop_words_are_text_or_one_special_token() -> None:
    words = [[[3, 4], [2], [4]]]
    request = read(stop_words_list=make_word_lists(words))
    assert request.stop == ("stop it", " it")
    assert request.end_ids == (2, 7, 2)
    with pytest.raises(ServeError, match="'stop</s>': mixes special tokens and text"):
        read(stop_words_list=make_word_lists([[[3, 2]]]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_width", [2]),
        ("len_penalty", [0.5]),
        ("embedding_bias", [[0.0, 1.0]]),
        ("lora_task_id", [0]),
        ("prompt_embedding_table", [[[0.0]]]),
        ("guided_decoding_guide", np.array([[b"{}"]], np.object_)),
        ("decoder_input_ids", [[0, 1]]),
        ("return_generation_logits", [True]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ServeError, match=f"not supported by this engine: {name}( |$)"):
        read(**{name: value})


def test_a_refusal_says_what_was_given_and_what_is_accepted() -> None:
    wanted = r"engine: beam_width 2 \(expected 1\), len_penalty 0.5 \(expected 0.0 or 1.0\)$"
    with pytest.raises(ServeError, match=wanted):
        read(beam_width=[2], len_penalty=np.array([0.5], np.float32))


def test_what_asks_for_nothing_is_accepted() -> None:
    read(
        beam_width=[1],
        len_penalty=[1.0],
        embedding_bias=np.empty((1, 0), np.float32),
        prompt_table_extra_ids=np.empty((1, 0), np.uint64),
        decoder_input_ids=[[0]],
        return_context_logits=[False],
        early_stopping=[False],
        pad_id=[2],
    )


def test_malformed_tensors_are_named() -> None:
    for values, reason in (
        ({"temperature": [[0.5, 0.6]]}, r"temperature: shape \(1, 2\), expected one value"),
        ({"bad_words_list": [[[1, 2, 3]]]}, "bad_words_list: shape"),
        ({"bad_words_list": [[[1, 2], [3, -1]]]}, "ends .3. are not ascending within 2 tokens"),
        ({"bad_words_list": [[[1, 2], [2, 1]]]}, "ends .2, 1. are not ascending"),
    ):
        with pytest.raises(ServeError, match=reason):
            read(**values)
    with pytest.raises(ServeError, match="input_ids: missing"):
        read_request({"request_output_len": np.ones(1)}, 0, defaults=DEFAULTS, session=SESSION)


words_strategy = st.lists(
    st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4), max_size=5), min_size=1
)


@given(words_strategy)
def test_word_lists_come_back(rows: list[list[list[int]]]) -> None:
    lists = make_word_lists(rows)
    assert lists.dtype == np.int32 and lists.shape[:2] == (len(rows), 2)
    for row, words in enumerate(rows):
        inputs = {"bad_words_list": lists, "input_ids": np.ones((len(rows), 1), np.int32)}
        inputs["request_output_len"] = np.ones(len(rows), np.int32)
        request = read_request(inputs, row, defaults=DEFAULTS, session=SESSION)
        assert [list(word) for word in request.bad_words] == words


def test_response_tensors_have_one_beam() -> None:
    response = Response(
        request_id=1,
        token_ids=(4, 5),
        text="né",
        log_probs=(-0.5, -1.0),
        cum_log_prob=-1.5,
        finish_reason="stop",
        num_input_tokens=3,
        num_output_tokens=2,
    )
    made = response_tensors(response, row=1, num_rows=2)
    assert made["output_ids"].tolist() == [[[4, 5]]] and made["output_ids"].dtype == np.int32
    assert made["sequence_length"].tolist() == [[2]]
    assert made["OUTPUT_TEXT"].tolist() == [["né".encode()]]
    assert made["output_log_probs"].shape == (1, 1, 2)
    assert made["cum_log_probs"].tolist() == [[-1.5]]
    assert made["finish_reason"].tolist() == [[b"stop"]]
    assert made["batch_index"].tolist() == [[1]]
    shapes = {tensor.name: tensor for tensor in signatures.TENSORRT_LLM_OUTPUTS}
    for name, array in made.items():
        assert array.ndim == 1 + len(shapes[name].dims), name
    bare = response_tensors(Response(request_id=1, token_ids=(4,)), row=0, num_rows=1)
    assert bare.keys() == {
        "output_ids",
        "sequence_length",
        "OUTPUT_TEXT",
        "num_input_tokens",
        "num_output_tokens",
    }
