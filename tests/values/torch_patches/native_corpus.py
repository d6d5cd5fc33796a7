"""C++ functions with a wasted write: some may be patched, in the others the tempting patch is wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NativeProgram:
    """One source file, the call of its finding, and the text after the patch."""

    name: str
    text: str
    called: str = "zeros_like"
    function: str = "at::native::f(at::Tensor const&)"
    after: str = ""
    """Empty: no patch may be proposed."""
    why: str = ""
    """Part of the reason."""
    pattern: str = "dead initialisation"


_WRAPPER = """\
#include <ATen/ops/f_native.h>
#include <ATen/ops/zeros_like.h>

Tensor f(const Tensor& input) {
  auto result = at::zeros_like(input, LEGACY_CONTIGUOUS_MEMORY_FORMAT);
  return at::f_out(result, input);
}
"""

PATCHED = [
    NativeProgram(
        name="a wrapper of the out variant",
        text=_WRAPPER,
        after="""\
#include <ATen/ops/empty_like.h>
#include <ATen/ops/f_native.h>
#include <ATen/ops/zeros_like.h>

Tensor f(const Tensor& input) {
  auto result = at::empty_like(input, LEGACY_CONTIGUOUS_MEMORY_FORMAT);
  return at::f_out(result, input);
}
""",
    ),
    NativeProgram(
        name="a call that only a comment repeats",
        text="""\
Tensor f(const Tensor& input) {
  // auto result = at::zeros_like(input);
  const char* text = "at::zeros_like(input)";
  Tensor result = zeros_like(input);
  return at::f_out(result, input);
}
""",
        after="""\
Tensor f(const Tensor& input) {
  // auto result = at::zeros_like(input);
  const char* text = "at::zeros_like(input)";
  Tensor result = empty_like(input);
  return at::f_out(result, input);
}
""",
    ),
    NativeProgram(
        name="the kernel of a structured operator, with returns in a lambda",
        called="zero_",
        function="at::native::structured_f_out_cpu::impl(at::Tensor const&, at::Tensor const&)",
        text="""\
TORCH_IMPL_FUNC(f_out_cpu) (const Tensor& input, const Tensor& result) {
  TORCH_CHECK(input.dim() == 2, "two dimensions; not {", input.dim(), "}");
  result.zero_();

  at::parallel_for(0, input.numel(), 0, [&](int64_t start, int64_t end) {
    if (start == end) {
      return;
    }
    set(result, start, end);
  });
}
""",
        after="""\
TORCH_IMPL_FUNC(f_out_cpu) (const Tensor& input, const Tensor& result) {
  TORCH_CHECK(input.dim() == 2, "two dimensions; not {", input.dim(), "}");

  at::parallel_for(0, input.numel(), 0, [&](int64_t start, int64_t end) {
    if (start == end) {
      return;
    }
    set(result, start, end);
  });
}
""",
    ),
    NativeProgram(
        name="a condition that is no call of a function",
        called="zero_",
        text="""\
Tensor f(const Tensor& input) {
  Tensor result = at::empty_like(input);
  result.zero_();
  if (input.dim() == 3) {
    check(input);
  }
  return at::f_out(result, input);
}

Tensor g(const Tensor& input) {
  Tensor result = at::empty_like(input);
  if (input.dim() == 3) {
    result.zero_();
  }
  return at::g_out(result, input);
}
""",
        after="""\
Tensor f(const Tensor& input) {
  Tensor result = at::empty_like(input);
  if (input.dim() == 3) {
    check(input);
  }
  return at::f_out(result, input);
}

Tensor g(const Tensor& input) {
  Tensor result = at::empty_like(input);
  if (input.dim() == 3) {
    result.zero_();
  }
  return at::g_out(result, input);
}
""",
    ),
    NativeProgram(
        name="a function that the compiler has inlined",
        called="zero_",
        text="""\
static void f_template(Tensor& columns) {
  columns.resize_({1, 2});
  columns.zero_();
  gemm(columns);
}

Tensor f(const Tensor& input) {
  Tensor columns = at::empty({0}, input.options());
  f_template(columns);
  return columns;
}
""",
        after="""\
static void f_template(Tensor& columns) {
  columns.resize_({1, 2});
  gemm(columns);
}

Tensor f(const Tensor& input) {
  Tensor columns = at::empty({0}, input.options());
  f_template(columns);
  return columns;
}
""",
    ),
    NativeProgram(
        name="a fill at the end of an expression",
        called="zero_",
        text="""\
Tensor f(const Tensor& input) {
  Tensor result = at::empty({2, 2}, input.options()).zero_();
  return at::f_out(result, input);
}
""",
        after="""\
Tensor f(const Tensor& input) {
  Tensor result = at::empty({2, 2}, input.options());
  return at::f_out(result, input);
}
""",
    ),
    NativeProgram(
        name="a return before the fill",
        called="zero_",
        text="""\
void f(const Tensor& input, Tensor& result) {
  if (input.numel() == 0) {
    return;
  }
  result.zero_();
  kernel(result);
}
""",
        after="""\
void f(const Tensor& input, Tensor& result) {
  if (input.numel() == 0) {
    return;
  }
  kernel(result);
}
""",
    ),
    NativeProgram(
        name="symbolic sizes",
        called="zeros",
        text="""\
Tensor f(const Tensor& input) {
  auto result = at::zeros_symint(input.sym_sizes(), input.options());
  return at::f_out(result, input);
}
""",
        after="""\
Tensor f(const Tensor& input) {
  auto result = at::empty_symint(input.sym_sizes(), input.options());
  return at::f_out(result, input);
}
""",
    ),
]

REFUSED = [
    NativeProgram(
        name="the fill of an inlined function, beside one of its caller",
        called="zero_",
        why="2 calls of zero_ in f are possible",
        text="""\
static void g(const Tensor& input, Tensor& result) {
  result.resize_(input.sizes());
  result.zero_();
  kernel(input, result);
}

Tensor f(const Tensor& input, Tensor& other) {
  Tensor result;
  g(input, result);
  other.zero_();
  at::add_out(other, other, result);
  return result;
}
""",
    ),
    NativeProgram(
        name="a fill in a condition",
        called="zero_",
        why="under a condition",
        text="""\
Tensor f(const Tensor& input) {
  Tensor result = at::empty_like(input);
  if (input.dim() == 3) {
    result.zero_();
  }
  return at::f_out(result, input);
}
""",
    ),
    NativeProgram(
        name="a fill in a condition without braces",
        called="zero_",
        why="under a condition",
        text="""\
Tensor f(const Tensor& input) {
  Tensor result = at::empty_like(input);
  if (input.dim() == 3)
    result.zero_();
  return at::f_out(result, input);
}
""",
    ),
    NativeProgram(
        name="an early return that needs the zeros",
        why="can return before",
        text="""\
Tensor f(const Tensor& input) {
  auto result = at::zeros_like(input);
  if (input.numel() == 1) {
    return result;
  }
  return at::f_out(result, input);
}
""",
    ),
    NativeProgram(
        name="an early return before a removed fill",
        called="zero_",
        why="can return before",
        text="""\
void f(const Tensor& input, Tensor& result) {
  result.zero_();
  if (input.numel() == 0) return;
  kernel(result);
}
""",
    ),
    NativeProgram(
        name="two calls",
        why="2 calls of zeros_like",
        text="""\
Tensor f(const Tensor& input) {
  auto sum = at::zeros_like(input);
  auto result = at::zeros_like(input);
  return at::f_out(result, sum, input);
}
""",
    ),
    NativeProgram(
        name="two overloads",
        why="2 calls of zeros_like",
        text="""\
Tensor f(const Tensor& input) {
  auto result = at::zeros_like(input);
  return at::f_out(result, input);
}
Tensor f(const Tensor& input, int64_t dim) {
  auto result = at::zeros_like(input);
  return result.index_add_(dim, input);
}
""",
    ),
    NativeProgram(
        name="a fill in a loop",
        called="zero_",
        why="under a condition",
        text="""\
void f(const Tensor& input, Tensor& result) {
  for (const auto i : c10::irange(input.size(0))) {
    result.zero_();
    accumulate(result, i);
  }
}
""",
    ),
    NativeProgram(
        name="a fill whose result is used",
        called="zero_",
        why="the result of zero_ is used",
        text="""\
Tensor& f(const Tensor& input, Tensor& result) {
  return result.zero_().add_(input);
}
""",
    ),
    NativeProgram(
        name="one branch of a conditional expression",
        why="under a condition",
        text="""\
Tensor f(const Tensor& input, bool sum) {
  Tensor result;
  if (sum) result = at::zeros_like(input); else result = input.clone();
  return at::f_out(result, input);
}
""",
    ),
    NativeProgram(
        name="a copy that another path needs",
        called="copy_",
        pattern="redundant write",
        why="is a copy",
        text="""\
TORCH_IMPL_FUNC(f)(const Tensor& self, const Tensor& out) {
  if (!self.is_same(out)) {
    out.copy_(self);
  }
  if (expanded(out)) {
    expanded_stub(out);
    return;
  }
  f_impl(self, out);
}
""",
    ),
    NativeProgram(
        name="a lambda with the fill",
        called="zero_",
        why="under a condition",
        text="""\
void f(const Tensor& input, Tensor& result) {
  auto reset = [&] { result.zero_(); };
  kernel(result, reset);
}
""",
    ),
    NativeProgram(
        name="a case of a switch",
        called="zero_",
        why="under a condition",
        text="""\
void f(const Tensor& input, Tensor& result) {
  switch (input.dim()) {
    case 1:
      result.zero_();
  }
  kernel(result);
}
""",
    ),
    NativeProgram(
        name="a conditional expression",
        why="under a condition",
        text="""\
Tensor f(const Tensor& input, bool sum) {
  auto count = sum ? at::ones_like(input) : at::zeros_like(input);
  return count.scatter_add_(0, input);
}
""",
    ),
    NativeProgram(
        name="a member of another object",
        called="zero_",
        why="no call of zero_",
        text="""\
void f(const Tensor& input, Tensor& result) {
  result.zero_grad();
  kernel(result);
}
""",
    ),
    NativeProgram(
        name="two statements on a line",
        called="zero_",
        why="other statements",
        text="""\
void f(const Tensor& input, Tensor& result) {
  prepare(result); result.zero_();
  kernel(result);
}
""",
    ),
    NativeProgram(
        name="an unknown fill",
        called="full_like",
        why="no patch is known",
        text="""\
Tensor f(const Tensor& input) {
  auto result = at::full_like(input, 3);
  return at::f_out(result, input);
}
""",
    ),
]
