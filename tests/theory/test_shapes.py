"""Parameters as the models' publishers count them (sizes of the published weights)."""

import json

import pytest

from tracekit.errors import UsageError
from tracekit.theory.shapes import model_named, shape_of_config

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-65b": 65_285_660_672,
    "llama-2-70b": 68_976_648_192,
    "Llama-3.1-8B": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_known_models(name):
    assert model_named(name).parameters == PUBLISHED[name]


def test_unknown_names_get_the_nearest():
    with pytest.raises(UsageError, match="llama-71b") as error:
        model_named("llama-71b")
    assert "llama-70b" in error.value.hint


LLAMA = {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256}
CONFIGS = {
    "llama-3.1-8b": (
        LLAMA | {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336},
        8_030_261_248,
    ),
    "llama-3.2-1b": (
        LLAMA
        | {"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "head_dim": 64}
        | {"tie_word_embeddings": True},
        1_235_814_400,
    ),
    "qwen2.5-7b": (
        {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28}
        | {"num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064},
        7_615_616_512,
    ),
    "mixtral-8x7b": (
        {"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000}
        | {"num_local_experts": 8, "num_experts_per_tok": 2},
        46_702_792_704,
    ),
    "gpt2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
        124_439_808,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_of_configs(name, tmp_path):
    fields, published = CONFIGS[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    assert shape_of_config(str(path)).parameters == published


def test_a_token_goes_through_two_of_eight_experts(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["mixtral-8x7b"][0]))
    # 12.9 B active parameters, as its publisher says, less the look-up table (32,000 x 4,096).
    assert shape_of_config(str(path)).multiplied_parameters == pytest.approx(12.88e9 - 0.131e9, rel=0.002)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no JSON"),
        (b"[1, 2]", "no config.json"),
        (b'{"hidden_size": 4096}', "num_attention_heads"),
        (b'{"hidden_size": -1, "num_attention_heads": 2}', "no size"),
        (b'{"hidden_size": true}', "no size"),
        (b'{"hidden_size": 1e99}', "no size"),
        (b'{"kv_lora_rank": 512, "hidden_size": 7168}', "not understood"),
        (b"[" * 100_000, "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (b" " * 1_000_001, "too large"),
    ],
)
def test_what_is_no_config_is_refused(content, said, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said) as error:
        shape_of_config(str(path))
    assert error.value.hint


def test_a_config_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        shape_of_config(str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match="cannot be read"):
        shape_of_config(str(tmp_path))
    with pytest.raises(UsageError, match="cannot be read"):
        shape_of_config("a\0b")


def test_lora_adapters():
    # LoRA on q and v of a 7 B Llama with rank 8: 32 layers x 2 x 8 x (4,096 + 4,096), as peft counts it: 4,194,304.
    assert model_named("llama-7b").lora_parameters(8, attention_only=True) == 4_194_304
    # All seven matrices with rank 16, as peft counts them for this model: 39,976,960.
    assert model_named("llama-7b").lora_parameters(16) == 39_976_960
