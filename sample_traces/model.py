"""A transformer as the kernels that it launches on an H100, each with the time that its arithmetic or bytes need."""

from __future__ import annotations

from dataclasses import dataclass, replace

from placed import Kernel

GEMM_FLOPS_PER_NS = 610_000
ATTENTION_FLOPS_PER_NS = 420_000
MEMORY_BYTES_PER_NS = 2_500
SHORTEST_KERNEL_NS = 2_240

GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_{layout}_n_tilesize128x{tile}x64_warpgroupsize{groups}x1x1_execute_segment_k_off"
    "_kernel__5x_cublas"
)
FLASH = (
    "void flash::flash_{way}_kernel<Flash_{way}_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, (bool)0, "
    "cutlass::bfloat16_t>, (bool)0, (bool)1>(flash::Flash_{way}_params)"
)
ATEN = "void at::native::"
UNNAMED = ATEN + "<unnamed>::"
ELEMENTWISE = ATEN + (
    "vectorized_elementwise_kernel<(int)4, at::native::{functor}, std::array<char *, (unsigned long){arrays}>>"
    "(int, T2, T3)"
)
ADAM = UNNAMED + (
    "multi_tensor_apply_kernel<at::native::<unnamed>::FusedOptimizerTensorListMetadata<(int)4>, "
    "at::native::<unnamed>::FusedAdamMathFunctor<float, (int)4, (at::native::ADAM_MODE)1, (bool)0>, float>(T1, T2)"
)
NORM = UNNAMED + "vectorized_layer_norm_kernel<c10::BFloat16, float, (bool)1>(int, T2, const T1 *, const T1 *)"
NORM_BACKWARD = UNNAMED + (
    "layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, (bool)1>(const T1 *, const T1 *, T1 *, int)"
)
COPY_OUT = UNNAMED + (
    "split_with_sizes_copy_out_contiguous_no_cast_kernel(char **, char *, long *, long *, long, long)"
)
COPY_IN = UNNAMED + (
    "CatArrayBatchedCopy_vectorized<at::native::<unnamed>::OpaqueType<(unsigned int)2>, unsigned int, (int)1, "
    "(int)128, (int)1, (int)16, (int)8>(char *, T2, T3)"
)
CHUNK_CAT = UNNAMED + ("chunk_cat_cuda_kernel<float, c10::BFloat16>(T2 **, T1 *, long *, long *, long, long)")
EMBED = UNNAMED + "indexSelectLargeIndex<c10::BFloat16, long, unsigned int, (int)2, (int)2, (int)-2, (bool)1>(T1)"
EMBED_BACKWARD = UNNAMED + "compute_grad_weight<c10::BFloat16, float, long>(const T3 *, const T1 *, T2 *)"
PARAMETER_KERNELS = {ADAM, COPY_OUT, COPY_IN, CHUNK_CAT}
"""Kernels over parameters or gradients: a batch of another length leaves them as they are."""
CROSS_ENTROPY = UNNAMED + "cunn_SoftMaxForward<(int)8, c10::BFloat16, float, float>(T4 *, const T2 *, int)"
CROSS_ENTROPY_BACKWARD = UNNAMED + "cunn_SoftMaxBackward<(int)8, c10::BFloat16, float>(T4 *, const T2 *, int)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder of ``layers`` equal layers with tied embeddings; batch and sequence are one rank's."""

    layers: int
    hidden: int
    vocab: int
    batch: int
    sequence: int
    dtype: str = "bfloat16"
    experts: int = 1
    """Each layer but the first has so many MLPs, of which a token uses one: more parameters, no more arithmetic."""
    head_rows: int = 0
    """Rows of an output matrix of its own; 0 where the embedding is used for it."""
    frozen_root: bool = False
    """The parameters outside the layers are not trained."""
    lengths_vary: bool = False
    """Sequences are up to ``sequence`` tokens long, each rank's and step's in another way."""

    @property
    def heads(self) -> int:
        """Attention heads of 128."""
        return max(1, self.hidden // 128)

    def layer_parameters(self, layer: int) -> int:
        """Parameters of one layer."""
        return (4 + 8 * (self.experts if layer else 1)) * self.hidden**2

    @property
    def head_parameters(self) -> int:
        """Parameters of the output matrix, where it is one of its own."""
        return self.head_rows * self.hidden

    @property
    def root_parameters(self) -> int:
        """Parameters outside the layers."""
        return self.vocab * self.hidden + self.head_parameters

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.root_parameters + sum(self.layer_parameters(layer) for layer in range(self.layers))

    @property
    def trained_parameters(self) -> int:
        """The parameters that the optimizer updates."""
        return self.parameters - (self.root_parameters if self.frozen_root else 0)

    @property
    def outputs(self) -> int:
        """Logits of a token."""
        return self.head_rows or self.vocab

    @property
    def tokens(self) -> int:
        """Tokens of a rank in a step."""
        return self.batch * self.sequence

    @property
    def flops_a_token(self) -> int:
        """What a token has to be multiplied with, one expert of each layer: forward once, backward twice.

        A product with an n x k matrix is 2nk; attention looks at the whole sequence, as if nothing were masked.
        """
        layer = 2 * (4 + 8) * self.hidden**2 + 4 * self.sequence * self.hidden
        return 3 * (self.layers * layer + 2 * self.outputs * self.hidden)

    def description(self) -> dict[str, int | bool]:
        """The shape, as the trainer's start mark gives it."""
        shape: dict[str, int | bool] = {
            "layers": self.layers,
            "hidden": self.hidden,
            "heads": self.heads,
            "vocab": self.vocab,
            "parameters": self.parameters,
            "tied": not self.head_rows,
        }
        if self.experts > 1:
            shape["active_parameters"] = self.parameters - (self.layers - 1) * (self.experts - 1) * 8 * self.hidden**2
        if self.frozen_root:
            shape["trained_parameters"] = self.trained_parameters
        return shape

    def layer_forward(self) -> list[Kernel]:
        """The kernels of one layer's forward pass."""
        h = self.hidden
        return [
            self._stream(NORM, 4 * h),
            self._gemm("tn", 3 * h, h, 128),
            self._flash("fwd", 1.0),
            self._gemm("tn", h, h, 64),
            self._stream(NORM, 6 * h),
            self._gemm("tn", 4 * h, h, 128),
            self._stream(ELEMENTWISE.format(functor="GeluCUDAKernelImpl", arrays=2), 16 * h),
            self._gemm("tn", h, 4 * h, 256),
        ]

    def layer_backward(self) -> list[Kernel]:
        """The kernels of one layer's backward pass: for each matrix the gradients of its input and of its weight."""
        h = self.hidden
        return [
            self._gemm("nn", 4 * h, h, 128),
            self._gemm("nt", 4 * h, h, 128),
            self._stream(ELEMENTWISE.format(functor="GeluBackwardCUDAKernelImpl", arrays=3), 24 * h),
            self._gemm("nn", h, 4 * h, 256),
            self._gemm("nt", h, 4 * h, 256),
            self._stream(NORM_BACKWARD, 8 * h),
            self._gemm("nn", h, h, 64),
            self._gemm("nt", h, h, 64),
            self._flash("bwd", 2.5),
            self._gemm("nn", h, 3 * h, 128),
            self._gemm("nt", h, 3 * h, 128),
            self._stream(NORM_BACKWARD, 8 * h),
        ]

    def embed(self) -> list[Kernel]:
        """Looking tokens up."""
        return [self._stream(EMBED, 4 * self.hidden)]

    def embed_backward(self) -> list[Kernel]:
        """The embedding's gradient."""
        return [] if self.frozen_root else [self._stream(EMBED_BACKWARD, 8 * self.hidden)]

    def head_forward(self) -> list[Kernel]:
        """Logits and loss."""
        return [
            self._stream(NORM, 4 * self.hidden),
            self._gemm("tn", self.outputs, self.hidden, 128),
            self._stream(CROSS_ENTROPY, 4 * self.outputs),
        ]

    def head_backward(self) -> list[Kernel]:
        """Gradients of loss and logits."""
        return [
            self._stream(CROSS_ENTROPY_BACKWARD, 4 * self.outputs),
            self._gemm("nn", self.hidden, self.outputs, 128),
            *([] if self.frozen_root else [self._gemm("nt", self.outputs, self.hidden, 128)]),
            self._stream(NORM_BACKWARD, 8 * self.hidden),
        ]

    def adam(self, shards: int, launches: int = 4) -> list[Kernel]:
        """Fused Adam over one of ``shards`` equal parts of the parameters: 28 bytes a parameter are read or written."""
        size = 28 * self.trained_parameters // shards // launches
        return [moved(ADAM, size)] * launches

    def _gemm(self, layout: str, n: int, k: int, tile: int) -> Kernel:
        name = GEMM.format(layout=layout, tile=tile, groups=2 if tile == 256 else 1)
        ns = round(2 * self.tokens * n * k / GEMM_FLOPS_PER_NS)
        return Kernel(
            name=name,
            ns=max(SHORTEST_KERNEL_NS, ns),
            grid=(n // 128 or 1, self.tokens // 128 or 1, 1),
            block=(384, 1, 1),
            registers=168,
        )

    def _flash(self, way: str, factor: float) -> Kernel:
        ns = round(factor * 2 * self.tokens * self.sequence * self.hidden / ATTENTION_FLOPS_PER_NS)
        return Kernel(
            name=FLASH.format(way=way),
            ns=max(SHORTEST_KERNEL_NS, ns),
            grid=(self.sequence // 128 or 1, self.batch, self.heads),
            registers=255,
        )

    def _stream(self, name: str, bytes_a_token: int) -> Kernel:
        return moved(name, self.tokens * bytes_a_token)


def moved(name: str, size: int) -> Kernel:
    """A kernel bound by memory: the time that ``size`` bytes need."""
    return Kernel(
        name=name,
        ns=max(SHORTEST_KERNEL_NS, size // MEMORY_BYTES_PER_NS),
        grid=(max(1, size // 65_536), 1, 1),
        registers=32,
    )


def at_length(kernel: Kernel, share: float) -> Kernel:
    """A kernel when the sequences have only ``share`` of the model's length: attention shrinks with its square."""
    if kernel.name in PARAMETER_KERNELS:
        return kernel
    attention = kernel.name in {FLASH.format(way=way) for way in ("fwd", "bwd")}
    # The dimension of the grid that runs over tokens.
    along = 1 if kernel.name.startswith(GEMM.split("{", maxsplit=1)[0]) else 0
    grid = [max(1, round(n * share)) if axis == along else n for axis, n in enumerate(kernel.grid)]
    ns = max(SHORTEST_KERNEL_NS, round(kernel.ns * share ** (2 if attention else 1)))
    return replace(kernel, ns=ns, grid=(grid[0], grid[1], grid[2]))
