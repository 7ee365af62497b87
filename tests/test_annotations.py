"""NVTX names: which are steps, phases and modules, and above all which are not."""

from __future__ import annotations

import time

import pytest

from tracekit.annotations import Annotation, base_name, describe_range
from tracekit.step_names import STEP_FAMILIES

STEPS = [
    ("tracekit", "step", "tracekit", None),
    (None, "ProfilerStep#1009", "ProfilerStep#", 1009),
    (None, "ProfilerStep#0, op_id = 12", "ProfilerStep#", 0),
    (None, "[pl][profile]run_training_batch", "lightning", None),
    (None, "train_step_003", "train_step N", 3),
    (None, "Train_Step_5", "train_step N", 5),
    (None, "training_step_12", "train_step N", 12),
    (None, "train_step", "train_step", None),
    (None, "Training iteration", "train_step", None),
    (None, "iteration 12", "iteration N", 12),
    (None, "Iteration_12", "iteration N", 12),
    (None, "iteration12", "iteration N", 12),
    (None, "iteration-3", "iteration N", 3),
    (None, "iter_3", "iteration N", 3),
    (None, "iteration", "iteration", None),
    (None, "step 12", "step N", 12),
    (None, "Step 12", "step N", 12),
    (None, "step_000012", "step N", 12),
    (None, "step#7", "step N", 7),
    (None, "step: 7", "step N", 7),
    (None, "steps42", "step N", 42),
    (None, "## step 7 ##", "step N", 7),
    (None, "global_step=7", "step N", 7),
    (None, "step", "step", None),
    ("my_training", "step", "step", None),
    (None, "Warm-up Step 3", "step N", 3),
    (None, "warmup_step3", "step N", 3),
    (None, "step 15/100", "step N", 15),
    (None, "[Epoch 2] Step 15", "step N", 15),
    (None, "epoch 2, step 15", "step N", 15),
    (None, "iteration 12 (warmup)", "iteration N", 12),
    (None, "iteration[32,36)", "iteration N", 32),
    (None, "Benchmark iteration 4", "iteration N", 4),
    (None, "Trainer step", "train_step", None),
    (None, "trainer.step 7", "train_step N", 7),
    (None, "GlobalStep", "step", None),
    (None, "GlobalStep 9", "step N", 9),
    (None, "TrainStep 9", "train_step N", 9),
    (None, "batch 4", "batch N", 4),
    (None, "Batch_4", "batch N", 4),
    ("TSL", "XlaModule:#hlo_module=jit_train_step,program_id=12#", "XlaModule", None),
    (
        None,
        "TSL:XlaModule:#prefix=jit(step),hlo_module=pjit__wrapped_step_fn,program_id=1#",
        "XlaModule",
        None,
    ),
    (None, "XlaModule:#hlo_module=jit_step#", "XlaModule", None),
]

NO_STEPS = [
    "eval step 3", "validation step 3", "optimizer step 3", "step 3 forward", "decode step 5", "step 3 loss 0.2",
    "load batch 3", "microbatch 3", "micro-batch 3", "batch", "batch of 4", "12 step", "epoch 3", "warmup", "steps",
    "step by step 3",
    "TSL:XlaCompile:#module=jit_train_step,program_id=1#", "XlaModule:#hlo_module=jit_eval_step,program_id=3#",
    "XlaModule:#hlo_module=jit_multiply,program_id=3#", "Thunk:#hlo_op=all-reduce.3#", "hstu_layer_step 3",
    "zrx_step_4",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_STEPS)
def test_no_step(name: str) -> None:
    found = describe_range(None, name)
    assert found is None or found.step is None


@pytest.mark.parametrize(("domain", "name", "family", "number"), STEPS)
def test_step(domain: str | None, name: str, family: str, number: int | None) -> None:
    assert describe_range(domain, name) == Annotation(step=family, step_number=number)


def test_families_are_the_ones_that_names_give() -> None:
    assert {family for _, _, family, _ in STEPS} == set(STEP_FAMILIES)


PHASES = [
    # PyTorch
    (None, "DistributedDataParallel.forward", "forward"),
    (None, "FullyShardedDataParallel.forward", "forward"),
    (None, "FullyShardedDataParallel._pre_forward", "forward"),
    (None, "FullyShardedDataParallel._root_pre_forward", "forward"),
    (None, "FullyShardedDataParallel._post_forward", "forward"),
    (None, "FullyShardedDataParallel._pre_backward_hook", "backward"),
    (None, "FullyShardedDataParallel._post_backward_hook", "backward"),
    (None, "FullyShardedDataParallel._pre_backward_prefetch", "backward"),
    (None, "FSDP::root_pre_forward", "forward"),
    (None, "FSDP::root_post_backward_callback", "backward"),
    (None, "Optimizer.step#AdamW.step", "optimizer"),
    (None, "Optimizer.zero_grad#AdamW.zero_grad", "optimizer"),
    (None, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data"),
    (None, "autograd::engine::evaluate_function: AddmmBackward0, op_id = 12", "backward"),
    (None, "AddmmBackward0, seq = 3, op_id = 12", "backward"),
    (None, "FlashAttnFuncBackward", "backward"),
    (None, "torch::autograd::AccumulateGrad", "backward"),
    (None, "torch.distributed.ddp.reducer::copy_bucket_to_grad", "backward"),
    (None, "PP:0F3", "forward"),
    (None, "PP:12I0", "backward"),
    (None, "PP:1W0", "backward"),
    (None, "Forward 3", "forward"),
    (None, "Backward 3", "backward"),
    # Lightning
    (None, "[pl][profile][Strategy]DDPStrategy.training_step", "forward"),
    (None, "[pl][profile][Strategy]FSDPStrategy.backward", "backward"),
    (None, "[pl][profile][Strategy]DDPStrategy.batch_to_device", "data"),
    (None, "[pl][profile][_TrainingEpochLoop].train_dataloader_next", "data"),
    (None, "[pl][profile][LightningModule]GPT.optimizer_zero_grad", "optimizer"),
    # DeepSpeed
    (None, "DeepSpeedEngine.forward", "forward"),
    (None, "DeepSpeedEngine.backward", "backward"),
    (None, "DeepSpeedEngine.allreduce_gradients", "backward"),
    (None, "DeepSpeedEngine.step", "optimizer"),
    (None, "DeepSpeedZeroOptimizer_Stage3.step", "optimizer"),
    (None, "DeepSpeedZeRoOffload.pre_sub_module_forward_function", "forward"),
    (None, "DeepSpeedZeRoOffload.pre_sub_module_backward_function", "backward"),
    # DLRM
    (None, "## forward ##", "forward"),
    (None, "## forward:tw_global_sparse_arch ##", "forward"),
    (None, "## backward ##", "backward"),
    (None, "## optimizer ##", "optimizer"),
    (None, "## zero_grad ##", "optimizer"),
    (None, "## load_batch ##", "data"),
    (None, "## data_load ##", "data"),
    (None, "## wait_for_batch ##", "data"),
    # users
    (None, "forward", "forward"),
    (None, "Fwd_3", "forward"),
    (None, "forward pass", "forward"),
    (None, "backward", "backward"),
    (None, "bwd", "backward"),
    (None, "loss.backward()", "backward"),
    (None, "optimizer", "optimizer"),
    (None, "optimizer.step", "optimizer"),
    (None, "opt.step()", "optimizer"),
    (None, "Optimizer Step", "optimizer"),
    (None, "zero_grad", "optimizer"),
    (None, "data", "data"),
    (None, "dataloader", "data"),
    (None, "Load Data", "data"),
    # the instrumented trainer
    ("tracekit", "data", "data"),
    ("tracekit", "forward", "forward"),
    ("tracekit", "backward", "backward"),
    ("tracekit", "optimizer", "optimizer"),
]


@pytest.mark.parametrize(("domain", "name", "phase"), PHASES)
def test_phase(domain: str | None, name: str, phase: str) -> None:
    assert describe_range(domain, name) == Annotation(phase=phase)


MODULES = [
    ("tracekit", "fwd/layers.3", "forward", "layers.3"),
    ("tracekit", "bwd/layers.12", "backward", "layers.12"),
    ("tracekit", "fwd/embed", "forward", "embed"),
    (None, "fwd/layers.3", "forward", "layers.3"),  # a trimmed capture has no domains
    (None, "FSDP::pre_forward (layers.0)", "forward", "layers.0"),
    (None, "FSDP::pre_forward (blocks.9._checkpoint_wrapped_module), op_id = 31", "forward", "blocks.9"),
    (None, "FSDP::post_forward (encoder.block.14.layer.0), op_id = 7", "forward", "encoder.block.14.layer.0"),
    (None, "FSDP::pre_backward (layers.0)", "backward", "layers.0"),
    (None, "FSDP::post_backward_reduce (layers.0) [pg=8]", "backward", "layers.0"),
    (None, "FSDP::backward_prefetch for layers.1", "backward", "layers.1"),
    (None, "FSDP::forward_prefetch for layers.1", "forward", "layers.1"),
    (None, "FSDP::all_gather (norm, output)", None, "norm, output"),
    (None, "FSDP::all_gather_copy_out (layers.2._orig_mod)", None, "layers.2"),
    (None, "[pl][module]torch.nn.modules.linear.Linear: layers.3.mlp", None, "layers.3.mlp"),
    (None, "layers.3", None, "layers.3"),
    (None, "transformer.h.0.mlp", None, "transformer.h.0.mlp"),
    (None, "module.model.layers.31.self_attn", None, "model.layers.31.self_attn"),
    (None, "_fsdp_wrapped_module.layers.3._fsdp_wrapped_module", None, "layers.3"),
    (None, "layers.3.forward", "forward", "layers.3"),
    (None, "layers.3 backward", "backward", "layers.3"),
    (None, "layer_7", None, "layer_7"),
]


@pytest.mark.parametrize(("domain", "name", "phase", "module"), MODULES)
def test_module(domain: str | None, name: str, phase: str | None, module: str) -> None:
    assert describe_range(domain, name) == Annotation(phase=phase, module=module)


NOTHING = [
    # step-like, and no step
    (None, "training_step"),  # Lightning's forward, or a user's step: not told
    (None, "[pl][profile][LightningModule]GPT.optimizer_step"),  # forward and backward run in its closure
    (None, "[pl][profile][Strategy]DDPStrategy.validation_step"),
    (None, "[pl][profile][Callback]TQDMProgressBar.on_train_batch_end"),
    (None, "validation_step"),
    (None, "lr_scheduler step"),
    (None, "lr_scheduler.step"),
    (None, "step_time"),
    (None, "data_step"),
    (None, "Step Forward"),
    (None, "step_3_forward"),
    (None, "microstep 3"),
    (None, "decode_step_3"),
    (None, "iteration_3_ga_step_1"),
    (None, "training_loop_10_steps"),
    (None, "iter"),
    (None, "steps"),
    (None, "ProfilerStep#"),
    (None, "ProfilerStep*"),
    (None, "ProfilerStep#\u0661"),
    (None, "epoch 3"),
    (None, "step -"),
    (None, "step " + "9" * 5000),
    (None, "step \u0661\u0662"),
    # phases that the name does not tell
    (None, "## metrics ##"),
    (None, "## metrics:publish ##"),
    (None, "## alltoall_bwd_single ##"),
    (None, "## sparse_data_dist ##"),
    (None, "## Request wait() ##"),
    (None, "forward_backward"),
    (None, "FullyShardedDataParallel.rate_limiter"),
    (None, "FSDP::inputs_to_device"),
    (None, "FSDP::all_gather"),
    (None, "PartitionedParameterCoordinator.fetch_sub_module"),
    (None, "DeepSpeedZeroOptimizer_Stage3.__reduce_and_partition_ipg_grads"),
    (None, "RegisterPostBackwardFunction, seq = 3, op_id = 4"),  # FSDP2 runs it in the forward
    (None, "torch.distributed.ddp.reducer::search_unused_parameters"),
    (None, "PP:0UNSHARD"),
    (None, "PP:0SEND_F1"),
    (None, "transformer_engine._Linear.forward"),  # recomputed under the same name in the backward
    (None, "megatron.core.transformer.transformer_layer._forward_attention.self_attention"),
    (None, "aten::native_layer_norm, seq = 3, op_id = 4"),
    (None, "nccl:_all_gather_base"),
    (None, "AllToAll4D"),
    # module-like
    (None, "0: LlamaDecoderLayer"),
    (None, "v1.2"),
    (None, "hidden.0"),
    (None, "layers"),
    (None, "layers.3(x)"),
    # other domains
    ("NCCL", "ncclAllGather"),
    ("NCCL", "step"),
    ("tracekit.comm", "all_gather"),
    ("tracekit", "checkpoint"),
    (None, ""),
    (None, " "),
    (None, "\x00\ud800"),
    (None, "####"),
]


@pytest.mark.parametrize(("domain", "name"), NOTHING)
def test_tells_nothing(domain: str | None, name: str) -> None:
    assert describe_range(domain, name) is None


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("aten::mm", "aten::mm"),
        ("aten::mm, op_id = 4", "aten::mm"),
        ("aten::mm, seq = 3, op_id = 4", "aten::mm"),
        ("aten::mm, op_id = 4, sizes = [[2, 3], [3, 4]], input_op_ids = [(1,0), (2,0)]", "aten::mm"),
        ("aten::mm, sizes = [[2, 3]]", "aten::mm"),
        ("aten::mm, input_op_ids = [(1,0)]", "aten::mm"),
        ("FSDP::all_gather (norm, output), op_id = 4", "FSDP::all_gather (norm, output)"),
        ("loss = 3", "loss = 3"),
        ("a, seq=3", "a, seq=3"),
        ("", ""),
    ],
)
def test_base_name(name: str, base: str) -> None:
    assert base_name(name) == base


@pytest.mark.parametrize(
    "name",
    [
        "9" * 100_000,
        "#" * 100_000,
        "a." * 50_000,
        "step" * 25_000,
        "Backward" * 12_000,
        ", seq = " * 12_000,
        "FSDP::" + "(" * 100_000,
        "FSDP::x (" + "a." * 50_000 + ")",
        "[pl][profile]" + "." * 100_000,
        "ProfilerStep#" + "1" * 100_000,
        "a" * 190 + ".layers.",
    ],
)
def test_long_names_take_linear_time(name: str) -> None:
    start = time.process_time()
    describe_range(None, name)
    base_name(name)
    assert time.process_time() - start < 1
