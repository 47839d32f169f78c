"""Old command lines, and the recipes they become."""

import re
from pathlib import Path

import pytest
import yaml

from llmc.builders.targets.tensorrt_llm.build_options import PLUGIN_OPTIONS
from llmc.cli.recipe_from_command import render_page
from llmc.errors import RecipeError
from llmc.quant import FORMATS
from llmc.recipes.commands import migrate
from llmc.recipes.loader import leaf_fields
from llmc.recipes.migration import NOT_SAID, TOOLS
from llmc.recipes.plugins import PluginRecipe
from tests.cli.run import llmc

PAGE = Path(__file__).parents[2] / "docs" / "migrate.md"

LLAMA_FLAGS = """
model_dir meta_ckpt_dir tp_size pp_size moe_tp_size cp_size moe_ep_size dtype vocab_size n_positions
n_layer n_head n_kv_head n_embd inter_size multiple_of ffn_dim_multiplier rms_norm_eps
use_weight_only disable_weight_only_quant_plugin weight_only_precision calib_dataset calib_size
calib_max_seq_length smoothquant use_qserve per_channel per_token int8_kv_cache fp8_kv_cache
quant_ckpt_path use_fp8 use_fp8_rowwise use_meta_fp8_rowwise_recipe per_group load_by_shard
hidden_act rotary_base group_size use_parallel_embedding embedding_sharding_dim output_dir workers
moe_num_experts moe_top_k moe_renorm_mode save_config_only remove_duplicated_kv_heads log_level
"""
QUANTIZE_FLAGS = """
model_dir nemo_ckpt_path decoder_type device calib_dataset calib_tp_size calib_pp_size dtype qformat
seed tokenizer_max_seq_length batch_size calib_size calib_max_seq_length output_dir tp_size pp_size
cp_size awq_block_size kv_cache_dtype num_medusa_heads num_medusa_layers max_draft_len
medusa_hidden_act medusa_model_dir quant_medusa_head autoq_format auto_quantize_bits
"""
BUILD_FLAGS = """
checkpoint_dir model_config build_config model_cls_file model_cls_name output_dir max_batch_size
max_input_len max_seq_len max_decoder_seq_len max_beam_width max_num_tokens opt_num_tokens
max_encoder_input_len max_prompt_embedding_table_size max_multimodal_len kv_cache_type
paged_kv_cache input_timing_cache output_timing_cache profiling_verbosity strip_plan weight_sparsity
weight_streaming fast_build workers log_level enable_debug_output visualize_network dry_run
monitor_memory logits_dtype gather_context_logits gather_generation_logits gather_all_token_logits
lora_dir lora_ckpt_source lora_target_modules max_lora_rank speculative_decoding_mode max_draft_len
auto_parallel gpus_per_node cluster_key
"""
UPSTREAM = {
    "convert_checkpoint.py": LLAMA_FLAGS,
    "quantize.py": QUANTIZE_FLAGS,
    "trtllm-build": BUILD_FLAGS,
}
"""Every argument of the programs' parsers, TensorRT-LLM 0.17.0.dev2024121700; Llama's converter."""


@pytest.mark.parametrize("tool", UPSTREAM)
def test_the_table_has_every_flag(tool: str) -> None:
    known = [name for flag in TOOLS[tool] for name in flag.names]
    assert len(set(known)) == len(known)
    assert [name for name in UPSTREAM[tool].split() if f"--{name}" not in known] == []


def test_every_flag_names_a_field_or_a_reason() -> None:
    fields = {name for name, _ in leaf_fields()}
    for flags in TOOLS.values():
        for flag in flags:
            assert flag.field in fields if flag.field else flag.note, flag.names
            if flag.field == "quantization.algo":
                values = [flag.value] if flag.takes == "none" else list(flag.values.values())
                assert {value for value in values if value is not NOT_SAID} <= {*FORMATS}


def test_the_commands_of_one_build_are_one_recipe() -> None:
    found = migrate(
        [
            "python3 examples/llama/convert_checkpoint.py --model_dir ./llama --dtype float16 "
            "--smoothquant 0.5 --per_channel --per_token --tp_size 2 --output_dir ckpt",
            "mpirun -n 2 trtllm-build --checkpoint_dir ckpt --gemm_plugin auto "
            "--max_batch_size 8 --max_seq_len=2048 --lora_dir a b --workers 2 "
            "--logits_dtype float32",
            "fill_template.py -i config.pbtxt 'decoupled_mode:False,gpu_device_ids:0\\,1,"
            "kv_cache_free_gpu_mem_fraction:0.5'",
        ]
    )
    text = found.to_yaml()
    assert yaml.safe_load(text) == {
        "model": "./llama",
        "dtype": "float16",
        "quantization": {"algo": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "alpha": 0.5},
        "mapping": {"tp": 2},
        "target": {"kind": "tensorrt-llm", "lora_dir": ["a", "b"], "workers": 2},
        "build": {"max_batch_size": 8, "max_seq_len": 2048, "plugins": {"gemm_plugin": "auto"}},
        "serve": {
            "decoupled": False,
            "kv_cache_free_gpu_mem_fraction": 0.5,
            "tensorrt_llm": {"gpu_device_ids": [[0, 1]]},
        },
    }
    comments = re.findall(r"^# (.*?):", text, re.MULTILINE)
    assert comments == [
        *("--per_channel", "--per_token", "--output_dir ckpt", "--checkpoint_dir ckpt"),
        "--logits_dtype float32",
    ]


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (
            "fill_template.py c 'gpu_device_ids:0\\,1;2\\,3,medusa_choices:{0}\\, {0\\, 1},"
            "max_attention_window_size:4096\\,512,decoding_mode:medusa,accumulate_tokens:True'",
            {
                "serve.tensorrt_llm.gpu_device_ids": [[0, 1], [2, 3]],
                "serve.tensorrt_llm.medusa_choices": [[0], [0, 1]],
                "serve.tensorrt_llm.max_attention_window_size": [4096, 512],
                "serve.tensorrt_llm.decoding_mode": "medusa",
                "serve.accumulate_tokens": True,
            },
        ),
        ("convert_checkpoint.py --use_weight_only", {"quantization.algo": "W8A16"}),
        (
            "convert_checkpoint.py --use_weight_only --weight_only_precision int4",
            {"quantization.algo": "W4A16"},
        ),
        (
            "convert_checkpoint.py --weight_only_precision int4_gptq --use_weight_only",
            {"quantization.algo": "W4A16_GPTQ"},
        ),
        ("convert_checkpoint.py --weight_only_precision int4 --moe_tp_size -1", {}),
        (
            "convert_checkpoint.py -sq 0.8",
            {"quantization.alpha": 0.8, "quantization.algo": "W8A8_SQ_PER_TENSOR_PLUGIN"},
        ),
        (
            "quantize.py --qformat int4_awq --awq_block_size 64 --kv_cache_dtype int8",
            {
                "quantization.algo": "W4A16_AWQ",
                "quantization.group_size": 64,
                "quantization.kv_cache": "INT8",
            },
        ),
        (
            "quantize.py --autoq_format fp8,int4_awq --auto_quantize_bits 6",
            {"quantization.target_bits": 6, "quantization.algo": "auto"},
        ),
    ],
)
def test_flags_that_belong_together(command: str, fields: dict[str, object]) -> None:
    assert migrate([command]).fields == fields


def test_every_option_of_a_plugin_is_a_field() -> None:
    """With the values trtllm-build takes, each is a recipe."""
    options = {name: option for name, option in PLUGIN_OPTIONS.items() if option.flag}
    fields = {flag.field: flag for flag in TOOLS["trtllm-build"] if flag.field}
    for name in PluginRecipe.model_fields.keys() - {"tokens_per_block", "manage_weights"}:
        assert fields[f"build.plugins.{name}"].names == (f"--{name}",)
        words = [word for word in options[name].values if word not in ("int32", "none")]
        for word in [*(words or ["enable"]), "disable"]:
            found = migrate([f"trtllm-build --{name} {word}"]).fields[f"build.plugins.{name}"]
            assert found == {"enable": True, "disable": "none" if words else False}.get(word, word)


def test_the_target_says_what_trtllm_build_was_told() -> None:
    command = (
        "trtllm-build --strip_plan --weight_streaming --fast_build --max_beam_width 4 --workers 2"
        " --input_timing_cache a.cache --output_timing_cache a.cache --gather_all_token_logits"
        " --lora_target_modules attn_q attn_v --max_lora_rank 16 --max_multimodal_len 32"
    )
    found = migrate([command])
    assert found.fields == {
        "target.kind": "tensorrt-llm",
        "target.strip_plan": True,
        "target.weight_streaming": True,
        "build.plugins.manage_weights": True,
        "target.max_beam_width": 4,
        "target.workers": 2,
        "target.timing_cache": "a.cache",
        "target.gather_context_logits": True,
        "target.lora_target_modules": ["attn_q", "attn_v"],
        "target.max_lora_rank": 16,
        "target.max_prompt_embedding_table_size": 32,
    }
    assert [source for source, _ in found.left] == ["--output_timing_cache a.cache"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("make all", "none of convert_checkpoint.py, .* is called"),
        ("trtllm-build --max_batch 3", "trtllm-build has no --max_batch"),
        ("trtllm-build --max_batch_size", "trtllm-build --max_batch_size: a value is missing"),
        ("trtllm-build --max_batch_size many", "max_batch_size"),
        ("quantize.py --qformat int3", "--qformat int3: not a format of llmc's"),
        ("fill_template.py config.pbtxt", "expected a file and its substitutions"),
        ("fill_template.py config.pbtxt decoupled:true", "fill_template.py has no decoupled"),
    ],
)
def test_what_cannot_be_read_is_said(command: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        migrate([command])


def test_the_command_prints_the_recipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "trtllm-build --max_num_tokens 512"
    done = llmc("recipe", "from-command", command, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0
    assert yaml.safe_load(done.stdout) == {
        "target": {"kind": "tensorrt-llm"},
        "build": {"max_num_tokens": 512},
    }
    assert "# model: " in done.stdout


def test_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(), "run `make docs`"
