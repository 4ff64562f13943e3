// What the two parts of the extension share: host memory that plays the device's.
#pragma once

#include <ATen/ATen.h>
#include <pybind11/pybind11.h>

namespace stand_in {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// A tensor of the other device over the same memory, which it keeps alive.
at::Tensor host_view(const at::Tensor& tensor);
at::Tensor device_view(const at::Tensor& tensor);

void bind_group(pybind11::module& module);

}  // namespace stand_in
