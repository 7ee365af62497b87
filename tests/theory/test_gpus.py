"""Names as drivers give them; peaks as the data sheets have them."""

import pytest

from tracekit.errors import UsageError
from tracekit.theory.gpus import GPUS, gpu_named, gpu_of


@pytest.mark.parametrize(
    ("name", "tflops", "nvlink", "memory"),
    [
        ("NVIDIA H100 80GB HBM3", 989, 450, 80),
        ("NVIDIA H100 PCIe", 756, None, 80),
        ("NVIDIA H100 NVL", 835, None, 94),
        ("NVIDIA A100-SXM4-80GB", 312, 300, 80),
        ("NVIDIA A100-SXM4-40GB", 312, 300, 40),
        ("NVIDIA A100-PCIE-40GB", 312, None, 40),
        ("NVIDIA A100 80GB PCIe", 312, None, 80),
        ("NVIDIA A800-SXM4-80GB", 312, 200, 80),
        ("NVIDIA H800", 989, 200, 80),
        ("NVIDIA H200", 989, 450, 141),
        ("NVIDIA H20", 148, 450, 96),
        ("NVIDIA B200", 2250, 900, 180),
        ("NVIDIA GB200", 2500, 900, 186),
        ("NVIDIA L40S", 362, None, 48),
    ],
)
def test_peaks_by_driver_name(name, tflops, nvlink, memory):
    gpu = gpu_of(name)
    assert gpu is not None
    assert (gpu.bf16_tflops, gpu.nvlink_gb_per_s, gpu.memory_gb) == (tflops, nvlink, memory)


@pytest.mark.parametrize("name", [None, "", "NVIDIA GeForce RTX 4090", "Intel(R) Arc", "NVIDIA GH200 480GB", "H2000"])
def test_others_are_unknown(name):
    assert gpu_of(name) is None


def test_a_user_may_spell_it_freely():
    assert gpu_named("h100").name == "H100"
    assert gpu_named("a100-sxm4-80gb").name == "A100"


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UsageError, match="'H10'") as error:
        gpu_named("H10")
    assert "H100" in error.value.hint


def test_every_product_finds_itself():
    assert [gpu_named(gpu.name).name for gpu in GPUS] == [gpu.name for gpu in GPUS]
