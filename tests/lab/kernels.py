"""Kernels of a transformer layer, and of the collectives, as profilers name them: (name, microseconds, grid)."""

from __future__ import annotations

Kernel = tuple[str, float, int]

_GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_{}_n_tilesize{}_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, at::detail::Array<char*, 3>>(int)"
_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>"
    "(int, float, const c10::BFloat16*)"
)
_NORM_BACK = (
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>"
    "(const c10::BFloat16*)"
)
_FLASH = (
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t>, false, true>"
    "(Flash_fwd_params)"
)
_FLASH_BACK = (
    "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, cutlass::bfloat16_t>>"
    "(Flash_bwd_params)"
)
_GROUPED = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape"
    "<cute::tuple<int, int, int>>, {}>>(cutlass::gemm::kernel::Params)"
)

NORM: Kernel = (_NORM, 60, 512)
QKV: Kernel = (_GEMM.format("tn", "128x128x64"), 420, 384)
ROTARY: Kernel = (_ELEMENTWISE.format("rotary_functor"), 50, 1024)
FLASH: Kernel = (_FLASH, 482, 256)
PROJECTION: Kernel = (_GEMM.format("tn", "128x128x64"), 210, 128)
UP: Kernel = (_GEMM.format("tn", "128x256x64"), 641, 512)
SILU: Kernel = (_ELEMENTWISE.format("silu_kernel"), 70, 2048)
DOWN: Kernel = (_GEMM.format("tn", "256x128x64"), 520, 448)
EXPERTS_UP: Kernel = (_GROUPED.format("fwd"), 655, 132)
EXPERTS_DOWN: Kernel = (_GROUPED.format("fwd"), 530, 132)

DOWN_BACK: tuple[Kernel, ...] = (
    (_GEMM.format("nn", "256x128x64"), 520, 448),
    (_GEMM.format("nt", "256x128x64"), 540, 449),
    (_ELEMENTWISE.format("silu_backward_kernel"), 110, 2048),
    (_GEMM.format("nn", "128x256x64"), 621, 512),
)
UP_BACK: Kernel = (_GEMM.format("nt", "128x256x64"), 640, 513)
NORM_BACK: Kernel = (_NORM_BACK, 110, 512)
ATTENTION_BACK: tuple[Kernel, ...] = (
    (_GEMM.format("nn", "128x128x64"), 402, 128),
    (_FLASH_BACK, 1150, 256),
    (_GEMM.format("nt", "128x128x64"), 818, 384),
)
EXPERTS_BACK: tuple[Kernel, ...] = (
    (_GROUPED.format("bwd"), 530, 132),
    (_GROUPED.format("bwd"), 540, 132),
    (_ELEMENTWISE.format("silu_backward_kernel"), 110, 2048),
    (_GROUPED.format("bwd"), 640, 132),
    (_GROUPED.format("bwd"), 650, 132),
)
EMBEDDING: Kernel = (
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, 1>()",
    900,
    1024,
)
EMBEDDING_BACK: Kernel = (
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<c10::BFloat16, float, long>()",
    900,
    1024,
)
HEAD: tuple[Kernel, ...] = (
    (_GEMM.format("tn", "128x256x64_head"), 1500, 1000),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>(float*, int)", 258, 4096),
)
HEAD_BACK: tuple[Kernel, ...] = (
    ("void at::native::(anonymous namespace)::cunn_SoftMaxBackward<8, float, float, float>(float*, int)", 280, 4096),
    (_GEMM.format("nn", "128x256x64_head"), 1490, 1000),
    (_GEMM.format("nt", "128x256x64_head"), 1490, 1001),
)
COPY_IN: Kernel = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<c10::BFloat16, unsigned int, 1, 128,"
    " 1>()",
    12,
    64,
)
COPY_OUT: Kernel = (
    "void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**, char*, long*)",
    24,
    128,
)
CHUNK: Kernel = (
    "void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float, c10::BFloat16>(c10::BFloat16**, float*)",
    22,
    256,
)
ACCUMULATE: Kernel = (_ELEMENTWISE.format("CUDAFunctor_add<float>"), 14, 256)
ADAM: Kernel = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>,"
    " FusedAdamMathFunctor<float, 4>>()",
    350,
    320,
)
SMALL: Kernel = (_ELEMENTWISE.format("mul_functor"), 30, 333)

_ARGUMENTS = "(ncclDevKernelArgsStorage<4096ul>)"
NCCL = {
    "all_gather": "ncclDevKernel_AllGather_RING_LL" + _ARGUMENTS,
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL" + _ARGUMENTS,
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" + _ARGUMENTS,
    "send_recv": "ncclDevKernel_SendRecv" + _ARGUMENTS,
}
NCCL_CALL = {"all_gather": "ncclAllGather", "reduce_scatter": "ncclReduceScatter", "all_reduce": "ncclAllReduce"}


def short(name: str) -> str:
    """The base name, without return type, namespaces, template and call arguments."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return plain.split("<")[0].split("(")[0].rsplit("::", 1)[-1]
