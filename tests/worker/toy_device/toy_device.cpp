// A device of the PrivateUse1 dispatch key, for tests. Memory is host memory and kernels are those of the CPU, but
// work is asynchronous: a kernel occupies device N for (N + 1) * TOY_KERNEL_NS, and the host does not wait for it.
// TOY_COUNT is the number of devices. TOY_WITHOUT lists what the backend lacks: events, a clock of events, memory
// statistics, counting of allocations.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

namespace {
constexpr auto TOY = c10::DeviceType::PrivateUse1;
constexpr int MOST = 8;

int64_t setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoll(text);
}
bool without(const std::string& feature) {
  const char* text = std::getenv("TOY_WITHOUT");
  return text != nullptr && std::string(text).find(feature) != std::string::npos;
}
int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

std::atomic<int64_t> busy_until_ns[MOST];
thread_local c10::DeviceIndex current = 0;
thread_local bool in_kernel = false;

void wait_until(int64_t time_ns) {
  while (now_ns() < time_ns) std::this_thread::sleep_for(std::chrono::nanoseconds(time_ns - now_ns()));
}
void submit(c10::DeviceIndex index) {
  static const int64_t kernel_ns = setting("TOY_KERNEL_NS", 100000);
  busy_until_ns[index] = std::max(busy_until_ns[index].load(), now_ns()) + (index + 1) * kernel_ns;
}

c10::CachingDeviceAllocator::DeviceStats stats[MOST];
struct Block {
  void* data;
  size_t size;
  c10::DeviceIndex index;
};
void release(void* context) {
  auto* block = static_cast<Block*>(context);
  if (!without("counting")) stats[block->index].allocated_bytes[0].decrease(block->size);
  std::free(block->data);
  delete block;
}
struct Allocator : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    auto* block = new Block{std::aligned_alloc(64, (size + 64) / 64 * 64), size, current};
    if (!without("counting")) stats[current].allocated_bytes[0].increase(size);
    return {block->data, block, &release, c10::Device(TOY, current)};
  }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  bool initialized() override { return !without("memory"); }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override { return stats[index]; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override { stats[index].allocated_bytes[0].reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override { return {1UL << 33, 1UL << 34}; }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TOY; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {TOY, std::exchange(current, device.has_index() ? device.index() : current)};
  }
  c10::Device getDevice() const override { return {TOY, current}; }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchangeDevice(device); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return setting("TOY_COUNT", 2); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { wait_until(busy_until_ns[index]); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    TORCH_CHECK(!without("events"), "the toy device has no events");
    if (*event == nullptr) *event = new int64_t;
    *static_cast<int64_t*>(*event) = std::max(now_ns(), busy_until_ns[stream.device_index()].load());
  }
  bool queryEvent(void* event) const override { return now_ns() >= *static_cast<int64_t*>(event); }
  void synchronizeEvent(void* event) const override { wait_until(*static_cast<int64_t*>(event)); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<int64_t*>(event); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    if (without("clock")) return 0.0;  // events that exist, and do not measure time
    return (*static_cast<int64_t*>(end) - *static_cast<int64_t*>(start)) / 1e6;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return setting("TOY_COUNT", 2) > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return setting("TOY_COUNT", 2); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
};

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device().type() != TOY) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}
at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(c10::Device(TOY, current)));
  return at::detail::empty_generic(size, c10::GetAllocator(TOY), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(c10::Device(TOY, current)));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(TOY),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  const bool to_host = to.device().type() != TOY;
  const auto index = (to_host ? from : to).device().index();
  if (!in_kernel) submit(index);
  if (!in_kernel && to_host) wait_until(busy_until_ns[index]);
  on_host(to).copy_(on_host(from));
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, at::native::resize_(to, from.sizes()), false);
}
at::Scalar local_scalar(const at::Tensor& tensor) {
  wait_until(busy_until_ns[tensor.device().index()]);
  return on_host(tensor).item();
}
void kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto index = current;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size()))
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == TOY)
      index = value.toTensor().device().index();
  c10::DeviceGuard guard(c10::Device(TOY, index));
  const bool outer = std::exchange(in_kernel, true);
  at::native::cpu_fallback(op, stack);
  in_kernel = outer;
  submit(index);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("view", at::native::view);
  m.impl("resize_", at::native::resize_);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>()); }

const bool registered = [] {
  static Allocator allocator;
  c10::SetAllocator(TOY, &allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();
}  // namespace
