"""Kernel names: communication or compute, the collective, the short name. Names are from captures and sources."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from tracekit.kernels import SHORT_LENGTH, describe_kernel, nccl_call_op

COMM = [
    # NCCL 2.4 to 2.8
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce", "ncclAllReduceKernel"),
    ("ncclAllReduceTreeLLKernel_sum_f16", "all_reduce", "ncclAllReduceKernel"),
    ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", "broadcast", "ncclBroadcastKernel"),
    ("ncclAllGatherRingLLKernel_copy_i8(ncclColl)", "all_gather", "ncclAllGatherKernel"),
    ("ncclReduceScatterRingLLKernel_sum_f32(ncclColl)", "reduce_scatter", "ncclReduceScatterKernel"),
    ("ncclReduceRingLLKernel_sum_f32(ncclColl)", "reduce", "ncclReduceKernel"),
    ("ncclSendRecvKernel_copy_i8(ncclColl)", "send_recv", "ncclSendRecvKernel"),
    # NCCL 2.9 to 2.18
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce", "ncclKernel_AllReduce"),
    (
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "send_recv",
        "ncclKernel_SendRecv",
    ),
    ("void ncclKernel_AllReduce_TREE_LL_Sum_half(ncclWorkElem)", "all_reduce", "ncclKernel_AllReduce"),
    ("ncclKernel_Reduce_RING_LL_Sum_float(ncclWorkElem)", "reduce", "ncclKernel_Reduce"),
    # NCCL 2.19 on
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather", "ncclDevKernel_AllGather"),
    ("ncclDevKernel_AllGatherV_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather", "ncclDevKernel_AllGather"),
    (
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "reduce_scatter",
        "ncclDevKernel_ReduceScatter",
    ),
    ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevComm*, unsigned long)", "all_reduce", "ncclDevKernel_AllReduce"),
    ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "broadcast", "ncclDevKernel_Broadcast"),
    ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce", "ncclDevKernel_Reduce"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)", "send_recv", "ncclDevKernel_SendRecv"),
    ("_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE", "send_recv", "ncclDevKernel_SendRecv"),
    # symmetric kernels and the general ones of the current main branch: the whole name is true
    (
        "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)",
        "all_reduce",
        "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16",
    ),
    (
        "ncclSymkDevKernel_ReduceScatter_LDMC_sum_bf16(ncclSymkDevWorkArgs4K)",
        "reduce_scatter",
        "ncclSymkDevKernel_ReduceScatter_LDMC_sum_bf16",
    ),
    ("ncclSymkDevKernel_AllGather_STMC", "all_gather", "ncclSymkDevKernel_AllGather_STMC"),
    ("ncclGenkDevKernel_Broadcast_Ring_LL128", "broadcast", "ncclGenkDevKernel_Broadcast_Ring_LL128"),
    # RCCL
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "unknown", "ncclDevKernel_Generic_4"),
    ("ncclDevKernel_Generic", "unknown", "ncclDevKernel_Generic"),
    (
        "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
        "unknown",
        "mscclKernel_Sum_half_Simple_false",
    ),
    # others
    (
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "all_reduce",
        "multimem_all_reduce_kernel",
    ),
    ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)", "all_gather", "multimem_all_gather_kernel"),
    (
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
        "all_reduce",
        "two_shot_all_reduce_kernel_inplace",
    ),
    (
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
        "all_reduce",
        "cross_device_reduce_1stage",
    ),
    (
        "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int)",
        "reduce_scatter",
        "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop",
    ),
    ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int)", "all_gather", "userbuffers_fp16_sum_inplace_gpu_rw_ag"),
    ("void userbuffers_fp16_sum_inplace_gpu_rw<8>(int)", "unknown", "userbuffers_fp16_sum_inplace_gpu_rw"),
    ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send_recv", "kuserbuffers_pushsend"),
    ("void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *, float *)", "all_to_all", "dispatch"),
    ("nvshmemi_proxy_barrier_kernel(int)", "barrier", "nvshmemi_proxy_barrier_kernel"),
    ("void nvshmemi_entrypoint<int>(int)", "unknown", "nvshmemi_entrypoint"),
    ("ncclKernelAllGatherCtranDirect", "all_gather", "ncclKernelAllGather"),
    # MSCCL++
    (
        "void mscclpp::collective::allgatherFullmesh2<false>(void*, mscclpp::DeviceHandle<mscclpp::MemoryChannel>*)",
        "all_gather",
        "allgatherFullmesh2",
    ),
    ("void mscclpp::collective::allreducePacket<int>(int*)", "all_reduce", "allreducePacket"),
    ("_ZN7mscclpp10collective17allreduceFullmeshEPv", "all_reduce", "allreduceFullmesh"),
    ("void mscclpp::executionKernel<mscclpp::PacketType>(int)", "unknown", "executionKernel"),
    # expert parallelism
    ("void hybrid_ep::dispatch_kernel<hybrid_ep::warp_group<1, 0>>(int)", "all_to_all", "dispatch_kernel"),
    ("void hybrid_ep::combine_kernel<8>(int)", "all_to_all", "combine_kernel"),
    ("void hybrid_ep::device_sync_kernel<8>(unsigned int*, unsigned int*)", "barrier", "device_sync_kernel"),
    ("void deep_ep::internode::notify_dispatch<false, 2>(int const*)", "all_to_all", "notify_dispatch"),
    ("void deep_ep::internode_ll::clean_low_latency_buffer<32>(int*)", "barrier", "clean_low_latency_buffer"),
    ("void primus_turbo::deep_ep::intranode::combine<bf16>(int)", "all_to_all", "combine"),
    ("void uccl::internode_ll::dispatch<false, 7168>(void*)", "all_to_all", "dispatch"),
    ("void mori::moe::EpDispatchIntraNodeKernel<bf16>(int)", "all_to_all", "EpDispatchIntraNodeKernel"),
    ("EpCombineInterNodeV1Kernel_bf16", "all_to_all", "EpCombineInterNodeV1Kernel_bf16"),
    ("void a2a_dispatch_send_kernel<8, 4>(unsigned long)", "all_to_all", "a2a_dispatch_send_kernel"),
    (
        "void tensorrt_llm::kernels::moe_a2a::moeA2ADispatchKernel<8>(int const*)",
        "all_to_all",
        "moeA2ADispatchKernel",
    ),
    ("kernel_combine_token_intra_node", "all_to_all", "kernel_combine_token_intra_node"),
    # all-reduces of inference engines
    (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
        "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>(int)",
        "all_reduce",
        "allreduce_fusion_kernel_oneshot_lamport",
    ),
    ("void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(int)", "all_reduce", "oneShotAllReduceKernel"),
    ("void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>(int)", "all_reduce", "twoShotAllReduceKernel"),
    (
        "void tensorrt_llm::kernels::lowPrecisionTwoShotHierAllReduceKernel<half>(int)",
        "all_reduce",
        "lowPrecisionTwoShotHierAllReduceKernel",
    ),
    ("void quickreduce::allreduce_prototype_twoshot<int>(int)", "all_reduce", "allreduce_prototype_twoshot"),
    (
        "void aiter::reduce_scatter_cross_device_store<half, 8>(int)",
        "reduce_scatter",
        "reduce_scatter_cross_device_store",
    ),
    # XLA
    (
        "void stream_executor::gpu::AllReduceKernelImpl<__nv_bfloat16, (xla::ReductionKind)0>(int)",
        "all_reduce",
        "AllReduceKernelImpl",
    ),
    ("void stream_executor::gpu::RaggedAllToAllKernelImpl<8l>(void*)", "all_to_all", "RaggedAllToAllKernelImpl"),
    # PyTorch's symmetric memory
    ("void (anonymous namespace)::reduce_scatter_lastdim_kernel<bf16, 16, 8>(int)", "reduce_scatter", None),
    ("c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)", "barrier", None),
    ("(anonymous namespace)::barrier_kernel(unsigned int**, int, int, int, unsigned long)", "barrier", None),
    ("c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int)", "send_recv", "put_signal_kernel"),
    ("void c10d::nvshmem_extension::allToAllV<1>(void*)", "all_to_all", "allToAllV"),
    ("_multimem_all_gather_kernel", "all_gather", "_multimem_all_gather_kernel"),
]


@pytest.mark.parametrize(("name", "op", "short"), COMM)
def test_communication(name: str, op: str, short: str | None) -> None:
    kernel = describe_kernel(name)
    assert (kernel.comm, kernel.op, kernel.family, kernel.suspected) == (True, op, "comm", False)
    assert kernel.source is not None
    if short is not None:
        assert kernel.short == short


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>(int)", True),
        ("void tensorrt_llm::kernels::oneShotAllReduceNormKernel<half, 8>(int)", True),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(int)", False),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(int)", False),
    ],
)
def test_a_kernel_that_also_computes_is_told(name: str, fused: bool) -> None:
    kernel = describe_kernel(name)
    assert (kernel.comm, kernel.fused) == (True, fused)


SUSPECTED = [
    "void my::AllReduceKernel<float>(float*)",
    "all_gather_into_place(float*)",
    "send_recv_halo(float*)",
    "custom_a2a_kernel",
    "void tp::gemm_one_shot_all_reduce_fused<8>(int)",
    "my_nccl_thing",
]


@pytest.mark.parametrize("name", SUSPECTED)
def test_what_only_sounds_like_communication_is_compute_and_suspected(name: str) -> None:
    kernel = describe_kernel(name)
    assert (kernel.comm, kernel.suspected) == (False, True)


INNOCENT = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>(int)",
    "void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float>(int)",
    "scatter_add_kernel",
    "gather_kernel",
    "broadcast_add_kernel",
    "void grid_barrier_kernel<32>(int*)",
    "barrier_kernel(int*, int)",
    "void block_all_reduce_sum_f32x4_f32_kernel<256>(float*)",
    "blockAllReduceMax",
    "warp_all_reduce",
    "triton_poi_fused_all_gather_into_tensor_wait_tensor_3",
    "triton_red_fused_add_one_shot_all_reduce_1",
    "void c10d::checkForNaN<float>(float*, unsigned long)",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64>>(flash::Flash_fwd_params)",
    "void hybrid_ep::permute_kernel<float>(int)",
    "void hybrid_ep::scan<8, 16>(int)",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
    "void vllm::moe::topk_softmax<float>(float*)",
    "void at::native::elementwise_kernel<deep_ep::Buffer, nvshmem_team>(int)",
    "void tensorrt_llm::kernels::moe_a2a::moeA2ASanitizeExpertIdsKernel(int*)",
    "void cutlass::device_kernel<flash::FlashAttnFwdCombine<8>>(int)",
    "void stream_executor::gpu::RepeatBufferKernelImpl(char*)",
    "dispatch_kernel",
    "combine_kernel",
]


@pytest.mark.parametrize("name", INNOCENT)
def test_compute_that_sounds_alike(name: str) -> None:
    kernel = describe_kernel(name)
    assert (kernel.comm, kernel.op, kernel.suspected, kernel.source) == (False, None, False, None)


COMPUTE = [
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1>>"
        "(int, at::native::FillFunctor<float>, at::detail::Array<char*, 1>)",
        "vectorized_elementwise_kernel",
        "other",
    ),
    # copies around FSDP's collectives are compute, not communication
    (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)",
        "CatArrayBatchedCopy",
        "other",
    ),
    (
        "void at::native::<unnamed>::CatArrayBatchedCopy_vectorized<at::native::<unnamed>::OpaqueType<(unsigned int)2>>"
        "(char *)",
        "CatArrayBatchedCopy_vectorized",
        "other",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_64x3_tn_align8>"
        "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_64x3_tn_align8::Params)",
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_64x3_tn_align8",
        "matmul",
    ),
    (
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<"
        "cute::tuple<int, int, int> > > >(cutlass::gemm::kernel::GemmUniversal<cute::tuple<int> >::Params)",
        "GemmUniversal",
        "matmul",
    ),
    (
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>>"
        "(flash::Params)",
        "FlashAttnFwdSm90",
        "attention",
    ),
    ("void cutlass::Kernel2<4>(int)", "cutlass::Kernel2", "other"),
    (
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, 7, cublasGemvParams<float> >"
        "(cublasGemvParams<float>)",
        "gemvx::kernel",
        "matmul",
    ),
    (
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
        "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
        "fused_add_rms_norm_kernel",
        "other",
    ),
    (
        "std::enable_if<(true), void>::type (anonymous namespace)::softmax_warp_forward<float, 6>(float*)",
        "softmax_warp_forward",
        "other",
    ),
    # the namespace says gemm, the kernel is not one
    ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*)", "permute_2D_lengths_kernel", "other"),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "matmul"),
    ("ampere_sgemm_128x128_tn", "ampere_sgemm_128x128_tn", "matmul"),
    ("void splitKreduce_kernel<float, float>(cublasSplitKParams<float>)", "splitKreduce_kernel", "matmul"),
    ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", "matmul"),
    (
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80",
        "attention",
    ),
    ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<int>(int)", None, "attention"),
    ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128>, (bool)0>(int)", "flash_fwd_kernel", "attention"),
    ("_attn_fwd", "_attn_fwd", "attention"),
    # Inductor: a pointwise kernel named after its neighbours, and a matrix product
    ("triton_per_fused__scaled_dot_product_flash_attention_backward_add_mm_3", None, "other"),
    ("triton_poi_fused_add_bitwise_and_0", "triton_poi_fused_add_bitwise_and_0", "other"),
    ("triton_tem_fused_addmm_relu_7", "triton_tem_fused_addmm_relu_7", "matmul"),
    ("triton_tem_fused_mm_7", "triton_tem_fused_mm_7", "matmul"),
    ("triton_tem_fused_flex_attention_2", "triton_tem_fused_flex_attention_2", "attention"),
    ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEEviT0_", None, "other"),
    # looks like communication and is not
    ("void at::native::_scatter_gather_elementwise_kernel<128, 4>(int)", "_scatter_gather_elementwise_kernel", "other"),
    ("void at::native::reduce_kernel<512, 1>(int)", "reduce_kernel", "other"),
    ("void broadcast_kernel<float>(float*)", "broadcast_kernel", "other"),
    ("unsigned int my_kernel(float*)", "my_kernel", "other"),
    ("memcpy HtoD", "memcpy HtoD", "other"),
]


@pytest.mark.parametrize(("name", "short", "family"), COMPUTE)
def test_compute(name: str, short: str | None, family: str) -> None:
    kernel = describe_kernel(name)
    assert (kernel.comm, kernel.op, kernel.family) == (False, None, family)
    if short is not None:
        assert kernel.short == short


def test_mangled_name_is_read() -> None:
    name = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEEviT0_"
    assert describe_kernel(name).short == "vectorized_elementwise_kernel"


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclAllGather", "all_gather"),
        ("ncclAllGatherV", "all_gather"),
        ("ncclReduceScatter", "reduce_scatter"),
        ("ncclAllReduce", "all_reduce"),
        ("ncclBroadcast", "broadcast"),
        ("ncclBcast", "broadcast"),
        ("ncclReduce", "reduce"),
        ("ncclSend", "send_recv"),
        ("ncclRecv", "send_recv"),
        ("ncclGather", "send_recv"),
        ("ncclScatter", "send_recv"),
        ("ncclAlltoAll", "all_to_all"),
        ("ncclAllToAll", "all_to_all"),
        ("ncclAllToAllv", "all_to_all"),
        ("ncclPutSignal", "send_recv"),
        ("ncclGroupStart", "group"),
        ("ncclGroupEnd", "group"),
        ("ncclCommInitRank", None),
        ("ncclCommInitAll", None),
        ("ncclCommInitRankConfig", None),
        ("ncclCommSplit", None),
        ("ncclCommCount", None),
        ("ncclCommDestroy", None),
        ("ncclCommWindowRegister", None),
        ("ncclMemAlloc", None),
        ("ncclGroupSimulateEnd", None),
        ("AllGather", None),
        ("", None),
    ],
)
def test_nccl_call(name: str, op: str | None) -> None:
    assert nccl_call_op(name) == op


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "void ",
        "(",
        "<unnamed>",
        "(anonymous namespace)::",
        "\x00\n\ud800",
        "_Z",
        "_Z99999999x",
        "é" * 100_000,
        "<" * 100_000,
        "void a<" + "(" * 100_000,
        "a<b>::c " * 20_000,
        "std::x<" + "<> " * 30_000,
        "void cutlass::Kernel<" + "enable_a<" * 10_000,
        "triton_tem_fused_" + "a_" * 50_000,
        "_Z" + "1a" * 50_000,
        "(anonymous namespace)::" * 5_000,
    ],
)
def test_any_string_gives_a_short_name_in_linear_time(name: str) -> None:
    start = time.process_time()
    kernel = describe_kernel(name)
    assert time.process_time() - start < 1
    assert len(kernel.short) <= SHORT_LENGTH
    assert kernel.short.strip() or not name.strip()


def test_long_name_is_cut() -> None:
    kernel = describe_kernel("k" * 81)
    assert kernel.short == "k" * 79 + "…"
    assert describe_kernel("k" * 80).short == "k" * 80


def real_names(shared: Path) -> list[tuple[str, str]]:
    """(demangled, short) as nsys wrote them, from the shared captures."""
    names: set[tuple[str, str]] = set()
    for path in sorted((shared / "traces").rglob("*.sqlite")):
        with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True) as database:
            names.update(
                database.execute(
                    "SELECT DISTINCT d.value, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k"
                    " JOIN StringIds d ON d.id = k.demangledName JOIN StringIds s ON s.id = k.shortName"
                )
            )
        database.close()
    return sorted(names)


def test_short_name_is_the_profilers_own(shared: Path) -> None:
    """Except where the profiler's own says nothing (Kernel, kernel, a return type), is too long, or is NCCL's."""
    names = real_names(shared)
    assert len(names) > 300
    for demangled, theirs in names:
        if theirs in ("Kernel", "kernel", "enable_if") or theirs.startswith("nccl") or len(theirs) > SHORT_LENGTH:
            continue
        assert describe_kernel(demangled).short == theirs


def test_communication_in_real_captures(shared: Path) -> None:
    names = real_names(shared)
    comm = {theirs for demangled, theirs in names if describe_kernel(demangled).comm}
    assert comm == {"multimem_all_reduce_kernel"} | {theirs for _, theirs in names if theirs.startswith("nccl")}
