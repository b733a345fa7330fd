from __future__ import annotations

import pytest

from rankwatch.profiling import kernel_name
from rankwatch.profiling.kernel_name import is_collective, kernel_key, short_name
from rankwatch.profiling.source import MAX_KERNEL_NAME

SHAPE = (1024, 1, 1, 128, 1, 1)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
            "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul>>",
        ),
        ("_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE",
         "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        ("triton_per_fused_native_layer_norm_0", "triton_per_fused_native_layer_norm_0"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__"
         "5x_cublas",
         "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__"
         "5x_cublas"),
        ("void (anonymous namespace)::softmax<float, float4>(float*, int)", "softmax<float, float4>"),
        ("_Znonsense", "_Znonsense"),
        ("", ""),
    ],
)  # fmt: skip
def test_names_are_short_and_state_which_kernel_it_is(name: str, short: str) -> None:
    assert short_name(name) == short


def test_the_launch_shape_makes_two_kernels_of_one_name() -> None:
    assert kernel_key("gemm", SHAPE) == "gemm<<<1024,1,1 128,1,1>>>"
    assert kernel_key("gemm", (2, 1, 1, 128, 1, 1)) == "gemm<<<2,1,1 128,1,1>>>"


def test_long_names_are_cut_and_stay_apart_and_the_same_everywhere() -> None:
    one, other = "gemm_" + "x" * 300 + "_a", "gemm_" + "x" * 300 + "_b"
    keys = [kernel_key(one, SHAPE), kernel_key(other, SHAPE)]
    assert [len(key) for key in keys] == [MAX_KERNEL_NAME] * 2
    assert keys[0] != keys[1]
    assert all(key.endswith("<<<1024,1,1 128,1,1>>>") for key in keys)


def test_a_long_name_has_one_key_whether_a_source_demangles_it_or_not() -> None:
    mangled = f"_Z4gemmI{'3abc' * 60}EvPT_"
    assert kernel_name.demangled(mangled) != mangled
    assert short_name(kernel_name.demangled(mangled)) == short_name(mangled)
    assert kernel_key(kernel_name.demangled(mangled), SHAPE) == kernel_key(mangled, SHAPE)


def test_only_kernels_of_nccl_are_collectives() -> None:
    assert is_collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    assert not is_collective("vectorized_elementwise_kernel")


def test_without_the_runtime_of_c_plus_plus_names_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_name, "_demangler", lambda: None)
    assert kernel_name.demangled("_ZN2at6native3addEv") == "_ZN2at6native3addEv"
