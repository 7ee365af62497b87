"""Ranges that name a collective. Names are what NCCL, PyTorch and XLA write, as their sources have them."""

import pytest

from tracekit.collective_ranges import range_op


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclAllReduce", "all_reduce"),
        ("ncclAlltoAll", "all_to_all"),
        ("nccl:all_reduce", "all_reduce"),
        ("nccl:allreduce_coalesced", "all_reduce"),
        ("nccl:all_reduce_barrier", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_gather_into_tensor_coalesced", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("nccl:all_to_all", "all_to_all"),
        ("nccl:_broadcast_oop", "broadcast"),
        ("nccl:_reduce_oop", "reduce"),
        ("nccl:reduce", "reduce"),
        ("nccl:gather", "send_recv"),
        ("nccl:scatter", "send_recv"),
        ("nccl:send 0->1", "send_recv"),
        ("nccl:recv 1<-0", "send_recv"),
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("_c10d_functional::all_gather_into_tensor", "all_gather"),
        ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter"),
        ("symm_mem::one_shot_all_reduce", None),
        ("symm_mem::all_gather_matmul", "all_gather"),
        ("FSDP::all_gather (layers.3)", "all_gather"),
        ("Thunk:#hlo_op=all-reduce-start.1#", "all_reduce"),
        ("Thunk:#hlo_op=reduce-scatter.12#", "reduce_scatter"),
        ("TSL:Thunk:#name=ragged-all-to-all.3,hlo_op=ragged-all-to-all.3#", "all_to_all"),
        ("Thunk:#hlo_op=collective-permute-start#", "send_recv"),
    ],
)
def test_names_a_collective(name, op):
    assert range_op(name) == op


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ncclGroupEnd",
        "ncclCommInitRank",
        "nccl:coalesced",
        "nccl:",
        "c10d::monitored_barrier_",
        "FSDP::all_gather_copy_in",
        "FSDP::all_gather_copy_out",
        "FSDP::pre_forward",
        "FSDP::backward_prefetch for layers.1",
        "aten::gather",
        "aten::scatter_add_",
        "reduce",
        "send",
        "all gather the logs",
        "Thunk:#hlo_op=loop_reduce_fusion.3#",
        "Thunk:#hlo_op=all-reduce_fusion#",
        "Thunk:#hlo_op=sender#",
    ],
)
def test_names_none(name):
    assert range_op(name) is None
