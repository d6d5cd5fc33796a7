// Properties of an operator, computed once from its schema and kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

struct Operator {
  const c10::FunctionSchema* schema = nullptr;
  bool composite = false;
  std::vector<c10::DispatchKey> autocast;  // devices for which autocast wraps it
  bool inert = false;
  std::vector<size_t> writes;
};

bool has(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return op.hasKernelForDispatchKey(key);
}

std::unique_ptr<Operator> described(const c10::OperatorHandle& op) {
  auto found = std::make_unique<Operator>();
  const auto& schema = op.schema();
  found->schema = &schema;
  // As in the dispatcher: the composite kernel is used if the device has no kernel of its own. An
  // autograd kernel for another device (as `linear` has) does not matter then.
  found->composite = has(op, c10::DispatchKey::CompositeImplicitAutograd);
  for (const auto key :
       {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCPU,
        c10::DispatchKey::AutogradCUDA, c10::DispatchKey::CompositeExplicitAutograd}) {
    found->composite = found->composite && !has(op, key);
  }
  for (const auto key : {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA}) {
    if (has(op, key)) {
      found->autocast.push_back(key);
    }
  }
  for (size_t place = 0; place < schema.arguments().size(); ++place) {
    const auto* alias = schema.arguments()[place].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      found->writes.push_back(place);
    }
  }
  bool fresh = false;
  for (const auto& value : schema.returns()) {
    if (value.alias_info() == nullptr && value.type()->str().find("Tensor") != std::string::npos) {
      fresh = true;
    }
  }
  const auto& name = schema.name();
  const bool resizes = name == "aten::resize_" || name == "aten::resize_as_";
  const bool metadata = op.hasTag(at::Tag::inplace_view) && !resizes;
  found->inert = (found->writes.empty() || metadata) && !fresh;
  return found;
}

const Operator* find_operator(const std::string& name, const std::string& overload) {
  static auto* all = new std::unordered_map<std::string, std::unique_ptr<Operator>>();
  const auto key = name + "." + overload;
  const auto found = all->find(key);
  if (found != all->end()) {
    return found->second.get();
  }
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  auto& made = (*all)[key];
  if (op.has_value()) {
    made = described(*op);
  }
  return made.get();
}

const Operator* operator_of(const at::RecordFunction& call) {
  // The name string belongs to the schema of one overload, so its address identifies the overload.
  static auto* all = new std::unordered_map<const char*, const Operator*>();
  const char* text = call.name();
  const auto found = all->find(text);
  if (found != all->end()) {
    return found->second;
  }
  const auto name = call.operator_name();
  if (!name.has_value()) {
    return nullptr;  // not an operator: the address of its name may be reused
  }
  return (*all)[text] = find_operator(name->name, name->overload_name);
}

bool has_key(const c10::IValue& value, c10::DispatchKey key) {
  if (value.isTensor()) {
    return value.toTensor().defined() && value.toTensor().key_set().has(key);
  }
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined() && tensor.key_set().has(key)) {
        return true;
      }
    }
  }
  return false;
}

// Whether autocast wraps this call: it is enabled for the device of one of the arguments.
bool casts(const Operator& op, const at::RecordFunction& call) {
  for (const auto key : op.autocast) {
    if (c10::impl::tls_is_dispatch_key_excluded(key)) {  // excluded wherever autocast is off
      continue;
    }
    for (const auto& value : call.inputs()) {
      if (has_key(value, key)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace
