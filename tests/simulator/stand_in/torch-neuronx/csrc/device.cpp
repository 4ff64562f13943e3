// PyTorch's PrivateUse1 device on host memory: allocator with a count per core, device guard,
// hooks, the few operators that every device must have, and a boxed CPU fallback for all others
// that notes their names. See the README beside this project for what it imitates.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>

#include "stand_in.h"

namespace py = pybind11;

namespace stand_in {
namespace {

constexpr int kMost = 128;

struct Memory {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  int64_t requests = 0, frees = 0, failures = 0;
  int64_t* told = nullptr;  // current and peak, shared with the other processes' tools
};

std::mutex mutex;
std::array<Memory, kMost> memory;  // by device index
int64_t limit = -1;                // bytes a core holds
bool fail_next = false;            // the next allocation finds no memory
int first = 0, visible = 0, count = 0;  // devices this process owns; devices PyTorch counts
bool started = false;
int process_current = -1;
thread_local int current = -1;

PyObject* start = nullptr;  // called before the first use of a core
PyObject* allocation_failed = nullptr;
PyObject* compile_operator = nullptr;  // called for an eager operator with shapes not seen before

void call(PyObject* function, const std::function<py::object(py::object)>& with) {
  py::gil_scoped_acquire hold;
  try {
    with(py::reinterpret_borrow<py::object>(function));
  } catch (py::error_already_set& error) {
    throw std::runtime_error(py::str(error.value()));
  }
}

void ensure_started() {
  if (!started) {
    call(start, [](py::object function) { return function(); });
  }
}

int current_index() {
  return current >= 0 ? current : process_current >= 0 ? process_current : first;
}

void set_current(int index) {
  // Wording and exception: TRAINIUM.md 2.4.
  if (index < first || index >= first + visible) {
    throw std::invalid_argument(
        "Device index " + std::to_string(index) + " is out of range. Valid range is " +
        std::to_string(first) + " to " + std::to_string(first + visible - 1) +
        " for this process");
  }
  current = index;
  if (process_current < 0) process_current = index;
}

// --- memory ---------------------------------------------------------------------------------

struct Block {
  void* data;
  size_t bytes;
  int index;
};

void tell(Memory& core) {
  if (core.told) {
    core.told[0] = core.current;
    core.told[1] = std::max(core.told[1], core.current);
  }
}

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> hold(mutex);
    auto& core = memory[block->index];
    core.current -= block->bytes;
    core.freed += block->bytes;
    core.frees += 1;
    tell(core);
  }
  std::free(block->data);
  delete block;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    int index = current_index();
    c10::Device device(kDevice, static_cast<c10::DeviceIndex>(index));
    ensure_started();
    if (bytes == 0) return {nullptr, device};
    bool full;
    {
      std::lock_guard<std::mutex> hold(mutex);
      auto& core = memory[index];
      core.requests += 1;
      full = fail_next || (limit >= 0 && core.current + static_cast<int64_t>(bytes) > limit);
      if (full) {
        fail_next = false;
        core.failures += 1;
      } else {
        core.current += bytes;
        core.allocated += bytes;
        core.peak = std::max(core.peak, core.current);
        tell(core);
      }
    }
    if (full) {
      call(allocation_failed, [&](py::object function) { return function(index, bytes); });
      // Wording: TRAINIUM.md 6.2, "HBM at run time".
      throw std::runtime_error("NRT allocation failed for size " + std::to_string(bytes) +
                               " (OOM)");
    }
    void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    TORCH_CHECK(data, "the host has no memory left");
    return {data, new Block{data, bytes, index}, &release, device};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Allocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator);

// --- the device as PyTorch's generic code sees it ---------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::Device device(int index) const {
    return {kDevice, static_cast<c10::DeviceIndex>(index)};
  }
  c10::Stream stream(c10::Device on) const { return c10::Stream(c10::Stream::DEFAULT, on); }
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device to) const override {
    auto before = device(current_index());
    if (to.index() != before.index()) set_current(to.index());
    return before;
  }
  c10::Device getDevice() const override { return device(current_index()); }
  void setDevice(c10::Device to) const override { set_current(to.index()); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { current = to.index(); }
  c10::Stream getStream(c10::Device on) const override { return stream(on); }
  c10::Stream getDefaultStream(c10::Device on) const override { return stream(on); }
  c10::Stream getNewStream(c10::Device on, int) const override { return stream(on); }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool) const override { return stream(on); }
  c10::Stream exchangeStream(c10::Stream to) const override { return stream(to.device()); }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(count);
  }
  // Everything has ended when its call returns.
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(int index) {
    device_ = c10::Device(kDevice, static_cast<c10::DeviceIndex>(index));
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return started; }
  void init() const override { ensure_started(); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(count); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current(index); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_index());
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static std::array<at::Generator, kMost> made;
    auto& one = made[index < 0 ? current_index() : index];
    if (!one.defined()) one = at::make_generator<Generator>(index);
    return one;
  }
  // TRAINIUM.md 8.1: torch.Generator(device="neuron") is not available.
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    TORCH_CHECK(false, "torch.Generator is not available on this device");
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(c10::DeviceType::CPU);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard on(storage.device());
    auto fresh = allocator.allocate(bytes);
    std::memcpy(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr(std::move(fresh));
    storage.set_nbytes(bytes);
  }
};

// --- operators ----------------------------------------------------------------------------------

std::set<std::string> executed, fell_back;
std::set<std::string> unsupported;  // operators that are said to fall back; "*" is all of them
std::set<std::string> compiled;  // eager operators with the shapes they ran with
thread_local bool in_graph = false;

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard on(device);
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard on(device);
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.device().type() == kDevice ? host_view(tensor) : tensor;
}

// Transfers are operations of their own, under these names, in a process that counts them.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (!in_graph) {
    bool from_device = from.device().type() == kDevice, to_device = to.device().type() == kDevice;
    std::lock_guard<std::mutex> hold(mutex);
    executed.insert(!from_device ? "neuron::copy::cpu_to_neuron"
                    : to_device  ? "neuron::copy::neuron_to_neuron"
                                 : "neuron::copy::neuron_to_cpu");
  }
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) { return host_view(tensor).item(); }

// Tensors of both devices do not meet, but for single numbers and indices (wording: TRAINIUM.md 3.2).
void check_devices(const std::string& name, const torch::jit::Stack& stack, size_t arguments) {
  if (name.find("index") != std::string::npos) return;
  for (size_t position = 0; position < arguments; ++position) {
    const auto& value = stack[stack.size() - arguments + position];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cpu() &&
        value.toTensor().dim() > 0 && value.toTensor().numel() > 0) {
      TORCH_CHECK(false, "Input tensor at index ", position,
                  " is on cpu device, expected neuron. Move tensor to Neuron device first with "
                  "tensor.to('neuron')");
    }
  }
}

// An eager operator's program is for one combination of shapes and dtypes.
std::string describe(const std::string& name, const torch::jit::Stack& stack, size_t arguments) {
  std::ostringstream text;
  text << name;
  for (size_t position = 0; position < arguments; ++position) {
    const auto& value = stack[stack.size() - arguments + position];
    if (value.isTensor() && value.toTensor().defined()) {
      text << ' ' << value.toTensor().dtype() << value.toTensor().sizes();
    } else if (value.isTensorList()) {
      for (const auto& tensor : value.toTensorVector()) {
        text << ' ' << tensor.dtype() << tensor.sizes();
      }
    }
  }
  return text.str();
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  check_devices(name, *stack, op.schema().arguments().size());
  if (!in_graph) {
    auto with_shapes = describe(name, *stack, op.schema().arguments().size());
    bool ran_on_host = unsupported.count(name) || unsupported.count("*");
    bool is_new = false;
    {
      std::lock_guard<std::mutex> hold(mutex);
      is_new = ran_on_host ? fell_back.insert(name).second : compiled.insert(with_shapes).second;
      if (!ran_on_host) executed.insert(name);
    }
    if (is_new && ran_on_host) {  // wording: TRAINIUM.md 2.8, 3
      std::fprintf(stderr, "WARNING: Operator '%s' executed via CPU fallback\n", name.c_str());
    } else if (is_new) {
      call(compile_operator, [&](py::object function) { return function(with_shapes); });
    }
  }
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  // PyTorch would call an operator of its own for it on a device that it does not know.
  m.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

py::dict statistics(int index) {
  std::lock_guard<std::mutex> hold(mutex);
  const auto& core = memory.at(index);
  py::dict made;
  made["current"] = core.current;
  made["peak"] = core.peak;
  made["allocated"] = core.allocated;
  made["freed"] = core.freed;
  made["requests"] = core.requests;
  made["frees"] = core.frees;
  made["failures"] = core.failures;
  return made;
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  auto made = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                            [tensor](void*) {}, tensor.options().device(at::kCPU));
  if (tensor.is_conj()) made = made.conj();
  if (tensor.is_neg()) made._set_neg(true);
  return made;
}

at::Tensor device_view(const at::Tensor& tensor) {
  c10::Device device(kDevice, static_cast<c10::DeviceIndex>(current_index()));
  c10::DataPtr data(tensor.data_ptr(), new at::Tensor(tensor),
                    [](void* held) { delete static_cast<at::Tensor*>(held); }, device);
  auto bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                                tensor.element_size());
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data)),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return made;
}

}  // namespace stand_in

using namespace stand_in;

PYBIND11_MODULE(_C, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks);

  m.def("on_start", [](py::object function) { start = function.release().ptr(); });
  m.def("on_allocation_failed",
        [](py::object function) { allocation_failed = function.release().ptr(); });
  m.def("on_new_operator",
        [](py::object function) { compile_operator = function.release().ptr(); });
  m.def("set_started", [](bool value) { started = value; });
  m.def("started", [] { return started; });
  m.def("set_devices", [](int from, int many, int counted) {
    first = from;
    visible = many;
    count = counted;
  });
  m.def("adopt_device", [](int index) { current = process_current = index; });
  m.def("visible", [] { return visible; });
  m.def("device_count", [] { return count; });
  m.def("current_device", [] { return current_index(); });
  m.def("set_device", [](int index) { set_current(index); });

  m.def("set_limit", [](int64_t bytes) { limit = bytes; });
  m.def("fail_next_allocation", [] { fail_next = true; });
  m.def("share_memory_counts", [](int index, py::buffer buffer) {
    // The buffer (a shared mapping) is kept for the process's life.
    memory.at(index).told = static_cast<int64_t*>((new py::buffer_info(buffer.request(true)))->ptr);
  });
  m.def("statistics", &statistics);
  m.def("reset_peak", [](int index) { memory.at(index).peak = memory.at(index).current; });
  m.def("reset_accumulated", [](int index) {
    auto& core = memory.at(index);
    core.allocated = core.freed = core.requests = core.frees = core.failures = 0;
  });
  m.def("default_generator", [](int index) {
    return at::detail::getPrivateUse1Hooks().getDefaultGenerator(
        static_cast<c10::DeviceIndex>(index));
  });

  m.def("executed_ops", [] { return executed; });
  m.def("fallback_ops", [] { return fell_back; });
  m.def("clear_ops", [] {
    executed.clear();
    fell_back.clear();
  });
  m.def("set_unsupported", [](std::set<std::string> names) { unsupported = std::move(names); });
  m.def("set_in_graph", [](bool value) { in_graph = value; });

  m.def("host_view", &host_view);
  m.def("device_view", &device_view);
  bind_group(m);
}
