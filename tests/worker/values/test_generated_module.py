"""The text of generated modules: kernels, what they do with their arguments, and the buffers of each call."""

from __future__ import annotations

from torchyard.worker.values.compiled.generated_module import (
    KERNELS_OF_ADDRESSES,
    MODULE_WITHOUT_KERNELS,
    UNKNOWN,
    Kernel,
    read_module,
)

CPP = """
cpp_fused_sin_0 = async_compile.cpp_pybinding(['float*', 'const float*', 'float*', 'float*', 'const int64_t'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(float* in_out_ptr0,
                       const float* in_ptr0,
                       float* out_ptr0,
                       float* out_ptr1,
                       const int64_t ks0)
{
    for(int64_t x0=0; x0<ks0; x0+=1) {
        auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];
        out_ptr0[static_cast<int64_t>(x0)] = tmp0;
        auto tmp1 = out_ptr0[static_cast<int64_t>(x0)];
        tmp1.store(out_ptr1 + static_cast<int64_t>(x0));
    }
}
''')


cpp_fused_index_put_1 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{
    atomic_add(&out_ptr0[static_cast<int64_t>(0L)], in_ptr0[0]);
}
''')


async_compile.wait(globals())
def call(args):
    arg0_1, buf9 = args
    buf0 = empty_strided_cpu((4, ), (1, ), torch.float32)
    # Topologically Sorted Source Nodes: [sin], Original ATen: [aten.sin, aten.add]
    cpp_fused_sin_0(buf9, reinterpret_tensor(arg0_1, (2, ), (1, ), 0), buf0, buf1, s0)
    cpp_fused_index_put_1(arg0_1, buf0)
"""

TRITON = """
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
import triton
@triton_heuristics.pointwise(
    size_hints={'x': 16384},
    filename=__file__,
    triton_meta={'signature': {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32'}},
    inductor_meta={'kernel_name': 'triton_poi_fused_add_0', 'mutated_arg_names': ['in_out_ptr0'], 'no_x_dim': False},
)
@triton.jit
def triton_poi_fused_add_0(in_out_ptr0, in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tl.store(in_out_ptr0 + (x0), tmp0, xmask)
    tl.store(out_ptr0 + (x0), tmp0, xmask)
''', device_str='cuda')


triton_tem_fused_mm_1 = async_compile.triton('triton_tem_fused_mm_1', '''
@triton_heuristics.template(
    inductor_meta={'kernel_name': 'triton_tem_fused_mm_1', 'mutated_arg_names': []},
)
@triton.jit
def triton_tem_fused_mm_1(arg_A, arg_B, out_ptr0):
    tl.store(out_ptr0 + (x0), tmp0, xmask)
''', device_str='cuda')


scale_0 = async_compile.triton('scale', '''
@triton_heuristics.user_autotune(
    inductor_meta={'kernel_name': 'scale', 'mutated_arg_names': []},
    custom_kernel=True,
)
@triton.jit
def triton_scale(in_ptr0, out_ptr0, n):
    tl.store(out_ptr0, 1)
''', device_str='cuda')


multi_kernel_0 = async_compile.multi_kernel('multi_kernel_0', [
    triton_a,
    triton_b,
],)


triton_red_fused_sum_2 = async_compile.triton('triton_red_fused_sum_2', '''
@triton_heuristics.reduction(
    inductor_meta={'kernel_name': 'triton_red_fused_sum_2', 'mutated_arg_names': ['in_ptr1']},
)
@triton.jit
def triton_red_fused_sum_2(in_ptr0, in_ptr1, out_ptr0):
    tl.atomic_add(out_ptr0 + (x0), tmp0)
''', device_str='cuda')


def call(args):
    with torch.cuda._DeviceGuard(0):
        buf0 = buf7; del buf7  # reuse
        # Topologically Sorted Source Nodes: [y], Original ATen: [aten.add]
        stream0 = get_raw_stream(0)
        triton_poi_fused_add_0.run(buf0, arg0_1, buf1, 16384, stream=stream0)
        triton_poi_fused_add_0.run(buf2, arg1_1, buf3, 16384, stream=stream0)
"""


def _roles(kernel: Kernel) -> list[tuple[str, bool, bool, bool]]:
    return [(one.name, one.read, one.written, one.read_back) for one in kernel.parameters]


def test_the_names_of_cpp_parameters_tell_what_is_read_and_written() -> None:
    kernel = read_module(CPP).kernels["cpp_fused_sin_0"]
    assert _roles(kernel) == [
        ("in_out_ptr0", True, True, True),
        ("in_ptr0", True, False, False),
        ("out_ptr0", False, True, True),  # the kernel reads it back
        ("out_ptr1", False, True, False),
        ("ks0", True, False, False),
    ]


def test_atomic_additions_read_what_they_write() -> None:
    kernel = read_module(CPP).kernels["cpp_fused_index_put_1"]
    assert _roles(kernel)[1] == ("out_ptr0", True, True, True)


def test_calls_name_their_buffers_also_behind_views() -> None:
    module = read_module(CPP)
    (site,) = [site for (name, _), site in module.sites.items() if name == "cpp_fused_sin_0"]
    assert site.arguments == ("buf9", "arg0_1", "buf0", "buf1", "s0")
    assert site.operators == ("sin", "add")
    assert site.new == {"buf9", "buf0", "buf1"}
    (later,) = [site for (name, _), site in module.sites.items() if "index_put" in name]
    assert later.new == frozenset(), "an earlier kernel wrote it"


def test_triton_kernels_have_the_same_roles() -> None:
    module = read_module(TRITON)
    assert _roles(module.kernels["triton_poi_fused_add_0"])[:3] == [
        ("in_out_ptr0", True, True, True),
        ("in_ptr0", True, False, False),
        ("out_ptr0", False, True, False),
    ]
    assert _roles(module.kernels["triton_tem_fused_mm_1"]) == [
        ("arg_A", True, False, False),
        ("arg_B", True, False, False),
        ("out_ptr0", False, True, False),
    ]
    first, second = (site for (name, _), site in module.sites.items() if "poi" in name)
    assert first.arguments[:3] == ("buf0", "arg0_1", "buf1")
    assert first.operators == ("add",)
    assert second.arguments[:3] == ("buf2", "arg1_1", "buf3")
    assert first.line != second.line


def test_a_mutated_input_and_an_atomic_output_are_no_plain_writes() -> None:
    kernel = read_module(TRITON).kernels["triton_red_fused_sum_2"]
    assert not kernel.parameters[1].known
    assert _roles(kernel)[2] == ("out_ptr0", True, True, True)


def test_nothing_is_known_of_kernels_of_the_user_and_of_several_in_one() -> None:
    kernels = read_module(TRITON).kernels
    for name in ("scale_0", "multi_kernel_0"):
        assert kernels[name].parameters == ()
        assert kernels[name].parameter(1) is UNKNOWN


def test_kernels_of_earlier_versions_take_addresses_and_are_not_observed() -> None:
    text = (
        "cpp_fused_add_0 = async_compile.cpp('''\n"
        'extern "C" void kernel(const float* in_ptr0, float* out_ptr0) {}\n'
        "''')\n"
        "def call(args):\n"
        "    cpp_fused_add_0(c_void_p(arg0_1.data_ptr()), c_void_p(buf0.data_ptr()))\n"
    )
    assert read_module(text).why_not == KERNELS_OF_ADDRESSES


def test_a_cpp_wrapper_has_no_kernels_to_observe() -> None:
    module = read_module("inductor_entry = CppWrapperCodeCache.load_pybinding(...)\n" + CPP)
    assert module.kernels == {}
    assert module.why_not == MODULE_WITHOUT_KERNELS
