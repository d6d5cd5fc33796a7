// Follows a recorded step in C++, without calling Python for every operator.
//
// torch reports every operator call to observers, with inputs and outputs. Calls that a dispatch mode
// would observe are compared with the recording. Written GPU tensors are held until they are scanned;
// CPU memory is scanned here. Python is called to launch a GPU scan and, from the first operator that
// differs from the recording, for each remaining operator of the step.
//
// A mode observes calls below autograd; an observer is notified of top-level calls and of the calls
// inside them. So composite operators (and those that autocast wraps) are expanded, and calls inside
// all other operators are ignored. If this guess is wrong, the step differs from the recording, which
// is slower but never misses a call.
//
// An operator that raises is reported at its end, too, while the exception propagates and the Python
// error indicator may be set. Python is not called then, or the program would lose the error. Torch's
// activation checkpointing raises such an exception in every step to stop recomputation early.
//
// No Python headers are used: tensors are passed by torch operators, everything else by C functions.
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "follow_operator.h"

namespace {

using Tensors = std::vector<at::Tensor>;

// Same layout as `struct scan` in scan.c.
struct Scan {
  uint64_t hash, count, zeros, like_first, unchanged, first_bits, any_bits;
};
using ScanMemory = void (*)(const void*, const void*, size_t, int, Scan*);
using Flush = void (*)(int64_t);
using OnUnexpected = void (*)(const char*, const char*);
using Afterwards = void (*)();

struct Output {
  int64_t place, numel, kind, cpu, row, count, bits;
};

struct ExpectedCall {
  const Operator* op = nullptr;
  int64_t flush_before = -1, flush_after = -1;
  std::vector<Output> outputs;
};

struct Recording {
  std::vector<ExpectedCall> calls;
};

struct Row {
  int64_t row, hash, zeros, like_first, any_bits;
};

enum Kind : char { THROUGH, HIDDEN, FOLLOWED, UNEXPECTED };

struct Open {
  Kind kind;
  int exceptions;  // in flight when it began
};

struct State {
  std::vector<std::unique_ptr<Recording>> recordings;
  Recording* recording = nullptr;
  bool active = false;
  bool following = false;  // all operators so far match the recording
  std::thread::id owner;
  size_t at = 0;
  std::vector<Open> open;  // active calls, outermost first
  size_t hidden = 0;       // active calls whose inner calls are ignored
  Tensors held, written, results;
  std::vector<Row> rows;
  at::CallbackHandle handle = 0;
  bool observing = false;
  ScanMemory scan_memory = nullptr;
  Flush flush = nullptr;
  OnUnexpected on_unexpected = nullptr;
  Afterwards afterwards = nullptr;
};

State& state() {
  static State* the = new State();  // never destroyed: threads may outlive static destruction
  return *the;
}

// Operators that our Python callbacks run do not belong to the program.
struct Hide {
  explicit Hide(State& now) : now(now) {
    now.hidden += 1;
  }
  ~Hide() {
    now.hidden -= 1;
  }
  State& now;
};

void collect(const c10::IValue& value, Tensors& into) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      into.push_back(value.toTensor());
    }
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) {
        into.push_back(tensor);
      }
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) {
        into.push_back(item.toTensor());
      }
    }
  }
}

void collect_results(const at::RecordFunction& call, Tensors& into) {
  const auto& outputs = call.outputs();
  if (outputs.size() == 1) {
    collect(outputs[0], into);
    return;
  }
  for (const auto& value : outputs) {
    if (value.isTensor() && value.toTensor().defined()) {
      into.push_back(value.toTensor());
    }
  }
}

bool fits(const at::Tensor& tensor, const Output& output) {
  return tensor.numel() == output.numel && tensor.layout() == c10::kStrided &&
      static_cast<int64_t>(tensor.scalar_type()) == output.kind &&
      (output.cpu ? tensor.is_cpu() : tensor.is_cuda()) &&
      (tensor.is_contiguous() || tensor.is_non_overlapping_and_dense());
}

// Hold or scan the written tensors if they match the recording.
bool take(State& now, const ExpectedCall& expected_call) {
  Tensors all = now.written;
  for (const auto& result : now.results) {
    bool is_written = false;
    for (const auto& tensor : now.written) {
      is_written = is_written || tensor.is_same(result);
    }
    if (!is_written) {
      all.push_back(result);
    }
  }
  for (const auto& output : expected_call.outputs) {
    if (static_cast<size_t>(output.place) >= all.size() || !fits(all[output.place], output)) {
      return false;
    }
  }
  for (const auto& output : expected_call.outputs) {
    const auto& tensor = all[output.place];
    if (!output.cpu) {
      now.held.push_back(tensor);
      continue;
    }
    Scan scan{};
    now.scan_memory(
        tensor.data_ptr(), nullptr, static_cast<size_t>(output.count),
        static_cast<int>(output.bits), &scan);
    now.rows.push_back(
        {output.row, static_cast<int64_t>(scan.hash), static_cast<int64_t>(scan.zeros),
         static_cast<int64_t>(scan.like_first), static_cast<int64_t>(scan.any_bits)});
  }
  return true;
}

void collect_written(State& now, const at::RecordFunction& call, const Operator& op) {
  const auto inputs = call.inputs();
  for (const auto place : op.writes) {
    if (place < inputs.size()) {
      collect(inputs[place], now.written);
    }
  }
}

Kind begun(State& now, const at::RecordFunction& call) {
  const Operator* op = operator_of(call);
  if (op == nullptr || op->composite || casts(*op, call)) {
    return THROUGH;
  }
  const ExpectedCall* expected_call = nullptr;
  if (now.following && now.at < now.recording->calls.size()) {
    expected_call = &now.recording->calls[now.at];
  }
  const bool expected = expected_call != nullptr && expected_call->op == op;
  if (!expected && op->inert) {
    return HIDDEN;
  }
  now.written.clear();
  now.results.clear();
  collect_written(now, call, *op);
  const Hide hide(now);
  if (expected) {
    if (expected_call->flush_before >= 0) {
      now.flush(expected_call->flush_before);
    }
    return FOLLOWED;
  }
  now.following = false;
  now.on_unexpected(op->schema->name().c_str(), op->schema->overload_name().c_str());
  return UNEXPECTED;
}

void ended(State& now, const at::RecordFunction& call, Kind kind) {
  collect_results(call, now.results);
  if (kind == FOLLOWED) {
    const auto& expected_call = now.recording->calls[now.at];
    if (expected_call.outputs.empty() || take(now, expected_call)) {
      now.at += 1;
      if (expected_call.flush_after >= 0) {
        now.flush(expected_call.flush_after);
      }
      return;
    }
    now.following = false;
  }
  now.afterwards();
}

// What an operator wrote before it raised is unknown. The next operator reports the deviation to Python.
void raised(State& now, Kind kind) {
  if (kind != FOLLOWED) {
    return;
  }
  const auto& expected_call = now.recording->calls[now.at];
  if (expected_call.outputs.empty() && expected_call.flush_after < 0) {
    now.at += 1;  // treated as a match
  } else {
    now.following = false;
  }
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& call) {
  State& now = state();
  if (now.owner != std::this_thread::get_id()) {
    return nullptr;
  }
  Kind kind = HIDDEN;  // also for calls from destructors during stack unwinding
  const int exceptions = std::uncaught_exceptions();
  if (now.active && now.hidden == 0 && exceptions == 0) {
    kind = begun(now, call);
  }
  now.open.push_back({kind, exceptions});
  now.hidden += kind != THROUGH;
  return nullptr;
}

void on_end(const at::RecordFunction& call, at::ObserverContext*) {
  State& now = state();
  if (now.owner != std::this_thread::get_id() || now.open.empty()) {
    return;
  }
  const auto [kind, exceptions] = now.open.back();
  if (kind == FOLLOWED || kind == UNEXPECTED) {
    if (std::uncaught_exceptions() > exceptions) {
      raised(now, kind);
    } else {
      ended(now, call, kind);
    }
    now.written.clear();
    now.results.clear();
  }
  now.open.pop_back();
  now.hidden -= kind != THROUGH;
}

}  // namespace

TORCH_LIBRARY(torchyard_follow, library) {
  library.def("take_held() -> Tensor[]", []() { return std::exchange(state().held, {}); });
  library.def("written() -> Tensor[]", []() { return state().written; });
  library.def("results() -> Tensor[]", []() { return state().results; });
  library.def("kind(Tensor one) -> int", [](const at::Tensor& one) {
    return static_cast<int64_t>(one.scalar_type());
  });
}

extern "C" {

void follow_set(ScanMemory scan_memory, Flush flush, OnUnexpected on_unexpected, Afterwards afterwards) {
  State& now = state();
  now.scan_memory = scan_memory;
  now.flush = flush;
  now.on_unexpected = on_unexpected;
  now.afterwards = afterwards;
}

int64_t follow_new_recording() {
  State& now = state();
  now.recordings.push_back(std::make_unique<Recording>());
  return static_cast<int64_t>(now.recordings.size()) - 1;
}

void follow_drop_recording(int64_t recording) {
  state().recordings[recording].reset();
}

// Returns 0 if torch has no such operator. Each output is seven numbers, in the order of `Output`.
int follow_add_call(
    int64_t recording, const char* name, const char* overload, int64_t flush_before,
    int64_t flush_after, const int64_t* outputs, int64_t count) {
  ExpectedCall expected_call;
  expected_call.op = find_operator(name, overload);
  if (expected_call.op == nullptr) {
    return 0;
  }
  expected_call.flush_before = flush_before;
  expected_call.flush_after = flush_after;
  for (const int64_t* one = outputs; one < outputs + 7 * count; one += 7) {
    expected_call.outputs.push_back({one[0], one[1], one[2], one[3], one[4], one[5], one[6]});
  }
  state().recordings[recording]->calls.push_back(std::move(expected_call));
  return 1;
}

// Without a recording (-1) every operator is unexpected.
void follow_begin(int64_t recording) {
  State& now = state();
  now.recording = recording < 0 ? nullptr : now.recordings[recording].get();
  now.owner = std::this_thread::get_id();
  now.at = 0;
  now.rows.clear();
  now.held.clear();
  now.open.clear();
  now.hidden = 0;
  if (!now.observing) {
    auto callback = at::RecordFunctionCallback(on_begin, on_end);
    callback.needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION});
    now.handle = at::addThreadLocalCallback(callback);
    now.observing = true;
  }
  now.active = true;
  now.following = now.recording != nullptr;
}

// Stop and return the number of matched operators. Held tensors remain until they are taken.
int64_t follow_end() {
  State& now = state();
  now.active = false;
  if (now.observing && now.owner == std::this_thread::get_id()) {
    at::removeCallback(now.handle);
    now.observing = false;
  }
  return static_cast<int64_t>(now.at);
}

int64_t follow_position() {
  return static_cast<int64_t>(state().at);
}

int64_t follow_rows() {
  return static_cast<int64_t>(state().rows.size());
}

// Five numbers per row, in the order of `Row`.
void follow_take_rows(int64_t* into) {
  State& now = state();
  for (const auto& row : now.rows) {
    *into++ = row.row;
    *into++ = row.hash;
    *into++ = row.zeros;
    *into++ = row.like_first;
    *into++ = row.any_bits;
  }
  now.rows.clear();
}

}  // extern "C"
