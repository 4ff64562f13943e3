// Process group backend "neuron": hands views of host memory to gloo.
// What works and what raises: TRAINIUM.md 5.2.

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <thread>

#include "stand_in.h"

namespace py = pybind11;

namespace stand_in {
namespace {

using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;

Tensors views(const Tensors& tensors) {
  Tensors made;
  for (const auto& tensor : tensors) made.push_back(host_view(tensor));
  return made;
}

Lists views(const Lists& lists) {
  Lists made;
  for (const auto& tensors : lists) made.push_back(views(tensors));
  return made;
}

struct Done final : Work {
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(std::vector<at::Tensor>()));
    return future;
  }
};

class NeuronBackend final : public c10d::Backend {
 public:
  NeuronBackend(c10::intrusive_ptr<c10d::Backend> over, bool whole, std::string wrong, int hang)
      : Backend(over->getRank(), over->getSize()),
        gloo(std::move(over)),
        whole(whole),
        wrong(std::move(wrong)),
        hang(hang) {}

  const std::string getBackendName() const override { return "neuron"; }

  c10::intrusive_ptr<Work> allreduce(Tensors& tensors,
                                     const c10d::AllreduceOptions& opts) override {
    enter();
    if (wrong.empty()) {
      auto on_host = views(tensors);
      return gloo->allreduce(on_host, opts);
    }
    // All ranks meet, and what comes back is one rank's part.
    for (auto& tensor : tensors) {
      Tensors other{host_view(tensor).clone()};
      if (wrong == "first" && getRank() != 0) other[0].zero_();
      gloo->allreduce(other, opts)->wait();
      if (wrong == "first") host_view(tensor).copy_(other[0]);
    }
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<Work> allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    enter();
    auto on_host = views(tensors);
    return gloo->allreduce_coalesced(on_host, opts);
  }
  c10::intrusive_ptr<Work> broadcast(Tensors& tensors,
                                     const c10d::BroadcastOptions& opts) override {
    enter();
    auto on_host = views(tensors);
    return gloo->broadcast(on_host, opts);
  }
  c10::intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    enter();
    auto on_host = views(tensors);
    return gloo->reduce(on_host, opts);
  }
  c10::intrusive_ptr<Work> allgather(Lists& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& opts) override {
    enter();
    auto to = views(outputs);
    auto from = views(inputs);
    return gloo->allgather(to, from, opts);
  }
  c10::intrusive_ptr<Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::AllgatherOptions& opts) override {
    enter();
    auto to = host_view(output);
    auto from = host_view(input);
    return gloo->_allgather_base(to, from, opts);
  }
  c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    enter();
    auto to = views(outputs);
    auto from = views(inputs);
    return gloo->allgather_into_tensor_coalesced(to, from, opts);
  }
  c10::intrusive_ptr<Work> gather(Lists& outputs, Tensors& inputs,
                                  const c10d::GatherOptions& opts) override {
    enter();
    auto to = views(outputs);
    auto from = views(inputs);
    return gloo->gather(to, from, opts);
  }
  c10::intrusive_ptr<Work> scatter(Tensors& outputs, Lists& inputs,
                                   const c10d::ScatterOptions& opts) override {
    enter();
    auto to = views(outputs);
    auto from = views(inputs);
    return gloo->scatter(to, from, opts);
  }
  c10::intrusive_ptr<Work> reduce_scatter(Tensors& outputs, Lists& inputs,
                                          const c10d::ReduceScatterOptions& opts) override {
    enter();
    auto to = views(outputs);
    auto from = views(inputs);
    return gloo->reduce_scatter(to, from, opts);
  }
  c10::intrusive_ptr<Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    enter();
    auto to = host_view(output);
    auto from = host_view(input);
    return gloo->_reduce_scatter_base(to, from, opts);
  }
  c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    enter();
    auto to = views(outputs);
    auto from = views(inputs);
    return gloo->reduce_scatter_tensor_coalesced(to, from, opts);
  }
  c10::intrusive_ptr<Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                         std::vector<int64_t>& output_splits,
                                         std::vector<int64_t>& input_splits,
                                         const c10d::AllToAllOptions& opts) override {
    for (const auto* splits : {&output_splits, &input_splits}) {
      for (auto size : *splits) {
        TORCH_CHECK_NOT_IMPLEMENTED(size == splits->front(),
                                    "all_to_all_single works with even splits only");
      }
    }
    enter();
    auto to = host_view(output);
    auto from = host_view(input);
    return gloo->alltoall_base(to, from, output_splits, input_splits, opts);
  }
  c10::intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs,
                                    const c10d::AllToAllOptions& opts) override {
    enter();
    auto from = at::stack(views(inputs));
    auto to = at::empty_like(from);
    std::vector<int64_t> even;
    gloo->alltoall_base(to, from, even, even, opts)->wait();
    for (size_t index = 0; index < outputs.size(); ++index) {
      host_view(outputs[index]).copy_(to[index]);
    }
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& opts) override {
    TORCH_CHECK_NOT_IMPLEMENTED(whole, "Barrier is implemented only for default group");
    enter();
    return gloo->barrier(opts);
  }

 private:
  // A rank that is told to hang never answers again, in its `hang`-th collective.
  void enter() {
    if (hang > 0 && --hang == 0) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

  c10::intrusive_ptr<c10d::Backend> gloo;
  bool whole;         // the default group
  std::string wrong;  // "": right; "local", "first": whose part an all_reduce gives back
  int hang;           // collectives until it hangs; 0: never
};

}  // namespace

void bind_group(py::module& module) {
  py::class_<NeuronBackend, c10::intrusive_ptr<NeuronBackend>, c10d::Backend>(module,
                                                                              "NeuronBackend")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>, bool, std::string, int>(), py::arg("gloo"),
           py::arg("whole"), py::arg("wrong") = "", py::arg("hang") = 0);
}

}  // namespace stand_in
